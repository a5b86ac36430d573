"""The three runs of a training that asks for a save and is killed: undisturbed, resumed, resumed with one
part left cold. Each in a fresh process; what is resumed, in another interpreter than what was killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.adapters.sb3 import asked_script  # its classes: what of a state is time is known by the base class
from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare

HERE = Path(__file__).parents[3]
UNSEEDED = re.compile(r"<workers>/\d+/generators/value/python/")
"""Python seeds its generator anew in a process that is forked; nothing of these trainings draws from it."""


class Interpreter:
    """Another Python that forks a child for each order."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", f"from {asked_script.__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(self, **order: Any) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Case:
    """`ask` is the how-manieth call that asks (a `train()`, an evaluation, a step); `at` where it goes on,
    None where that depends on how fast the disk is."""

    name: str
    steps: int
    ask: int
    cold: tuple[str, ...]
    at: int | None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Outcome:
    undisturbed: dict[str, Any]
    resumed: dict[str, Any]
    forgot: dict[str, Any]
    differences: list[str]
    rows: list[list[str]]
    """What was logged: undisturbed, and by the killed process and the one that went on together. Nothing where
    the training writes SB3's own files."""


def three_runs(case: Case, first: Interpreter, second: Interpreter, folder: Path) -> Outcome:
    """Run a case three times. The killed run must have its newest checkpoint at `case.at`."""

    def order(name: str, **more: Any) -> dict[str, Any]:
        rows = str(folder / f"{name}.rows")
        out = str(folder / f"{name}.json")
        return {
            "case": case.name, "steps": case.steps, "log": str(folder / "log"), "root": str(folder / name),
            "rows": rows, "out": out, "files": str(folder / f"{name}.files"), **case.options, **more,
        }  # fmt: skip

    def said() -> str:
        return (folder / "log").read_text()

    assert first.run(**order("U")) == 0, said()
    assert first.run(**order("R", ask=case.ask)) == -9, said()
    newest = Repository.open(folder / "R", "job").commits()[0]
    assert newest.step == case.at if case.at is not None else newest.step > 0, f"it is at {newest.step}"
    shutil.copytree(folder / "R", folder / "C")
    assert second.run(**order("R")) == 0, said()
    assert f"goes on at step {newest.step:,}" in said()
    assert second.run(**order("C", cold=case.cold)) == 0, said()
    undisturbed, resumed, forgot = (json.loads((folder / f"{x}.json").read_text()) for x in "URC")
    rows = [path.read_text().splitlines() for path in (folder / "U.rows", folder / "R.rows") if path.exists()]
    return Outcome(undisturbed, resumed, forgot, differences(folder / "U", folder / "R"), rows)


def check(outcome: Outcome, case: Case) -> None:
    """Assert that the resumed run is the undisturbed one, and that the part left cold is needed for that."""
    assert outcome.resumed["weights"] == outcome.undisturbed["weights"]
    assert outcome.resumed["draws"] == outcome.undisturbed["draws"]
    assert outcome.resumed["steps"] == outcome.undisturbed["steps"]
    assert not outcome.differences, "\n".join(outcome.differences)[:4000]
    assert outcome.forgot["weights"] != outcome.undisturbed["weights"], f"{case.cold} changes nothing"


def differences(one: Path, other: Path) -> list[str]:
    states = []
    for root in (one, other):
        repository = Repository.open(root, "job")
        commit = repository.commits()[0]
        assert commit.position == "end"
        states.append(repository.load(commit))
    found = without_clocks(compare(*states), *states)
    return [str(difference) for difference in found if not UNSEEDED.search(difference.place)]

"""The quickstarts that take a second: each is killed, started again, and ends as the one that nothing happened to.

Its text is the file's, with fewer steps. Each start is a process of its own. The others are in `test_whole`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare

ROOT = Path(__file__).parents[2]
IMPORTS = {
    "sb3": ("stable_baselines3", "unbroken.sb3"),
    "loop": ("torch", "unbroken.adapters.loop"),
}
SHORT = {
    "sb3": ("10_000", "600", "save_freq=250", "save_freq=40", 560),
    "loop": ("8_000", "600", "every=500", "every=100", 250),
}
"""Of each file: its number of steps and a smaller one, its interval and a smaller one, and the step to die at."""


class Starts:
    """Starts of quickstarts, by a process that has imported what they need."""

    def __init__(self) -> None:
        names = [name for needed, *others in IMPORTS.values() for name in (needed, *others)]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.quickstart.runner", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def start(
        self, script: Path, folder: Path, *, kill_at: int = -1, cold: str = "-", expect: int = 0
    ) -> str:
        """Start the script in a folder; return what it said."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        folder.mkdir(exist_ok=True)
        log = folder / "said"
        order = {
            "script": str(script),
            "folder": str(folder),
            "log": str(log),
            "kill_at": kill_at,
            "cold": cold,
        }
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        answer = stdout.readline()
        said = log.read_text()
        assert int(answer) == expect, said
        return said

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    for needed, *_ in IMPORTS.values():
        pytest.importorskip(needed)
    made = Starts()
    yield made
    made.close()


@pytest.mark.parametrize("name", SHORT)
def test_killed_and_started_again_it_ends_with_the_same_weights(
    name: str, starts: Starts, tmp_path: Path
) -> None:
    total, fewer, interval, shorter, kill_at = SHORT[name]
    text = (ROOT / "examples" / "quickstart" / f"train_{name}.py").read_text()
    assert total in text and interval in text
    script = tmp_path / f"train_{name}.py"
    script.write_text(text.replace(total, fewer).replace(interval, shorter))

    undisturbed, killed, cold = (tmp_path / folder for folder in "URC")
    expected = last_line(starts.start(script, undisturbed))
    starts.start(script, killed, kill_at=kill_at, expect=-9)
    shutil.copytree(killed, cold)
    said = starts.start(script, killed)
    assert re.search(r"^unbroken: goes on at step [1-9][\d,]* from the newest checkpoint", said, re.MULTILINE)
    assert last_line(said) == expected
    assert differences(undisturbed / "runs", killed / "runs", name) == []
    assert last_line(starts.start(script, cold, cold="generators")) != expected


def last_line(said: str) -> str:
    """Return the line with which a quickstart ends: what it has come to."""
    return [line for line in said.splitlines() if "weights" in line][-1]


def differences(one: Path, other: Path, job: str) -> list[str]:
    """Return the places at which the final states of two runs differ."""
    ends = []
    for root in (one, other):
        repository = Repository.open(root, job)
        commit = repository.commits()[0]
        assert commit.position == "end"
        ends.append(repository.load(commit))
    return [leaf.place for leaf in without_clocks(compare(*ends), *ends)]

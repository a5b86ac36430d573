"""The proof: an undisturbed run (U), the same killed and resumed in another process (R), and resumed with
one part left cold (C). R is U bit for bit; C is not, or the test would prove nothing.

These few save while they are undisturbed too, and are killed at a step that is written here. All algorithms and
environments are in the matrix (`exactness/`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare

UNUSED = "observation_space/_np_random"
"""SB3's CNN draws one observation when it is built, seeded by the system's entropy, and never again."""
HERE = Path(__file__).parents[3]


class Runner:
    """Another interpreter that runs trainings in children of its own."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adapters.sb3.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(self, **order: Any) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert isinstance(stdin, IO) or stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def first() -> Iterator[Runner]:
    runner = Runner(1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def second() -> Iterator[Runner]:
    runner = Runner(2)
    yield runner
    runner.close()


@dataclass(frozen=True)
class Case:
    """`kill` and `save_freq` count steps of the vector of environments."""

    name: str
    steps: int
    kill: int
    save_freq: int
    cold: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("ppo", 300, 158, 17, ("model/policy/optimizer",)),
    Case("sac", 150, 95, 29, ("model/ent_coef_optimizer",)),
    Case("td3_switched", 150, 95, 29, ("model/action_noise",)),
    Case("td3_switched", 150, 96, 47, ("model/action_noise",)),  # at the second step of a rollout
    Case("td3_longer", 60, 38, 37, ("model/action_noise",)),
    Case("td3_shorter", 60, 38, 37, ("model/action_noise",)),
    Case("td3_shorter", 60, 39, 38, ("model/action_noise",)),  # where the new one is over already
    Case("td3_in_episodes", 60, 38, 37, ("model/action_noise",)),
    Case("td3_starts_later", 60, 38, 37, ("model/action_noise",)),
    Case("half_cheetah", 512, 110, 33, ("model/env/returns",)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.kill}")
def test_a_killed_run_ends_as_the_undisturbed_one(
    case: Case, first: Runner, second: Runner, tmp_path: Path
) -> None:
    order: dict[str, Any] = {
        "case": case.name, "steps": case.steps, "save_freq": case.save_freq, "options": case.options,
        "log": str(tmp_path / "log"),
    }  # fmt: skip

    def said() -> str:
        return (tmp_path / "log").read_text()

    undisturbed = tmp_path / "U"
    assert first.run(**order, root=str(undisturbed), out=str(tmp_path / "U.json")) == 0, said()
    killed = tmp_path / "R"
    out = str(tmp_path / "R.json")
    assert first.run(**order, root=str(killed), out=out, kill=case.kill) == -9, said()
    cold = tmp_path / "C"
    subprocess.run(["cp", "-r", str(killed), str(cold)], check=True)
    repository = Repository.open(killed, "job")
    episodes = repository.meta(repository.commits()[0]).episodes
    assert second.run(**order, root=str(killed), out=out) == 0, said()
    assert "goes on at step" in said()
    assert (f" · {episodes:,} episodes · " in said()) is (episodes > 0)
    assert second.run(**order, root=str(cold), out=str(tmp_path / "C.json"), cold=case.cold) == 0, said()

    expected, resumed, forgot = (json.loads((tmp_path / f"{x}.json").read_text()) for x in "URC")
    assert resumed["weights"] == expected["weights"]
    assert resumed["draws"] == expected["draws"]
    assert differences(undisturbed, killed) == []
    assert forgot["weights"] != expected["weights"], f"{case.cold} left cold changes nothing"


def differences(one: Path, other: Path) -> list[str]:
    states = []
    for root in (one, other):
        repository = Repository.open(root, "job")
        commit = repository.commits()[0]
        assert commit.position == "end"
        states.append(repository.load(commit))
    return [str(d) for d in without_clocks(compare(*states), *states) if UNUSED not in d.place]


@pytest.mark.parametrize("name", ["ppo", "dqn", "half_cheetah"])
def test_the_callback_changes_nothing_by_being_there(name: str, first: Runner, tmp_path: Path) -> None:
    order: dict[str, Any] = {"case": name, "steps": 256, "save_freq": 11, "log": str(tmp_path / "log")}
    assert first.run(**order, root=str(tmp_path / "a"), out=str(tmp_path / "with")) == 0
    assert first.run(**order, root=str(tmp_path / "b"), out=str(tmp_path / "without"), without=True) == 0
    assert (tmp_path / "with").read_text() == (tmp_path / "without").read_text()

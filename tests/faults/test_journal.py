"""Environments are rebuilt from the journal where no checkpoint has a usable state of them.

U is undisturbed; R is killed, every saved state of its environments is damaged, and it is started again; C lacks
the journal as well. Each runs in processes of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from unbroken.format.records import HistoryRecord
from unbroken.repo.repository import Repository

HERE = Path(__file__).resolve().parents[2]
TOTAL, KILL_AT = 130, 78


def start(kind: str, root: Path, *more: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.journal_script", kind, str(root), *map(str, more)],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def came_to(kind: str, root: Path) -> str:
    done = start(kind, root, TOTAL)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def spoil(root: Path) -> None:
    """Damage the state of the environments in every checkpoint, and nothing else."""
    spoilt = list((root / "run" / "steps").glob("*/env_states.json"))
    assert len(spoilt) > 3
    for document in spoilt:
        data = bytearray(document.read_bytes())
        data[len(data) // 2] ^= 1
        document.write_bytes(bytes(data))


def killed_and_spoilt(kind: str, root: Path) -> None:
    done = start(kind, root, TOTAL, KILL_AT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    spoil(root)


def last_start(root: Path) -> tuple[str, int]:
    line = _last(root)
    return line.tier, line.step


def last_reasons(root: Path) -> list[str]:
    return _last(root).reasons


def _last(root: Path) -> HistoryRecord:
    return [line for line in Repository.open(root, "run").history() if line.event == "start"][-1]


@dataclass(frozen=True)
class Killed:
    """What an undisturbed training of CartPole comes to, and where one lies that was killed and spoilt."""

    undisturbed: str
    root: Path

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.root, to)
        return to


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    place = tmp_path_factory.mktemp("journal")
    undisturbed = came_to("cartpole", place / "u")
    killed_and_spoilt("cartpole", place / "r")
    return Killed(undisturbed, place / "r")


def assert_stops_without_a_journal(kind: str, root: Path) -> None:
    shutil.rmtree(root / "run" / "journal")
    refused = start(kind, root, TOTAL)
    assert refused.returncode == 1
    assert "NoUsableCheckpoint" in refused.stderr
    assert "the run has no journal yet" in refused.stderr
    assert "env_states.json is damaged" in refused.stderr


def test_a_run_goes_on_exactly_from_the_journal(killed: Killed, tmp_path: Path) -> None:
    root = killed.copy(tmp_path / "r")
    assert came_to("cartpole", root) == killed.undisturbed
    assert last_start(root) == ("rebuilt", 60)


def test_the_same_run_stops_without_its_journal(killed: Killed, tmp_path: Path) -> None:
    assert_stops_without_a_journal("cartpole", killed.copy(tmp_path / "c"))


@pytest.mark.exactness
@pytest.mark.parametrize("kind", ["lander", "sb3", "mujoco", "frozenlake"])
def test_other_trainings_go_on_exactly_from_the_journal_and_not_without_it(kind: str, tmp_path: Path) -> None:
    undisturbed = came_to(kind, tmp_path / "u")
    killed_and_spoilt(kind, tmp_path / "r")
    shutil.copytree(tmp_path / "r", tmp_path / "c")
    assert came_to(kind, tmp_path / "r") == undisturbed
    assert last_start(tmp_path / "r") == ("rebuilt", 60)
    assert_stops_without_a_journal(kind, tmp_path / "c")


def test_an_environment_that_answers_differently_is_named_and_not_taken(
    killed: Killed, tmp_path: Path
) -> None:
    root = killed.copy(tmp_path / "r")
    done = start("cartpole", root, TOTAL, SHIFTED="1")
    assert done.returncode == 0, done.stderr
    assert last_start(root) == ("rebuilt", 0), "until its first step it is the same"
    reasons = [reason for reason in last_reasons(root) if "differently than in the saved run" in reason]
    assert ["CartPoleEnv answered the" in reason for reason in reasons] == [True] * 3


def test_a_damaged_entry_leaves_the_one_before_it_and_says_so(killed: Killed, tmp_path: Path) -> None:
    root = killed.copy(tmp_path / "r")
    (newest,) = (root / "run" / "journal").glob("step_000000000060-*")
    data = bytearray(newest.read_bytes())
    data[-9] ^= 1
    newest.write_bytes(bytes(data))
    assert came_to("cartpole", root) == killed.undisturbed
    assert last_start(root) == ("rebuilt", 40)
    assert any("journal/step_000000000060" in r and "is damaged" in r for r in last_reasons(root))


def test_a_run_that_may_not_fall_so_far_stops(killed: Killed, tmp_path: Path) -> None:
    refused = start("cartpole", killed.copy(tmp_path / "r"), TOTAL, UNBROKEN_WORST_TIER="older")
    assert refused.returncode == 1
    assert "worst_tier='older' forbids it" in refused.stderr

"""People go back on purpose, and a lost place comes back from its mirror: in processes of their own, killed for real."""

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
from unbroken.repo.retention import abandoned

HERE = Path(__file__).resolve().parents[2]
TOTAL, KILL_AT = 110, 90
BEST = {"loop": "score", "sb3": "rollout/ep_rew_mean"}


def start(kind: str, root: Path, *more: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.back_script", kind, str(root), *map(str, more)],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def came_to(kind: str, root: Path, **environment: str) -> str:
    done = start(kind, root, TOTAL, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kill(kind: str, root: Path, at: int = KILL_AT, **environment: str) -> None:
    done = start(kind, root, TOTAL, at, **environment)
    assert done.returncode == -signal.SIGKILL, done.stderr


def last_start(root: Path) -> HistoryRecord:
    return [line for line in Repository.open(root, "run").history() if line.event == "start"][-1]


@dataclass(frozen=True)
class Killed:
    """What an undisturbed training comes to, and where one lies that was killed, with its mirror."""

    kind: str
    undisturbed: str
    root: Path
    mirror: Path

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.root, to)
        return to


@pytest.fixture(scope="module", params=["loop", pytest.param("sb3", marks=pytest.mark.exactness)])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    kind, place = request.param, tmp_path_factory.mktemp("back")
    undisturbed = came_to(kind, place / "u")
    kill(kind, place / "r", UNBROKEN_BEST=BEST[kind], UNBROKEN_MIRROR=str(place / "mirror"))
    return Killed(kind, undisturbed, place / "r", place / "mirror")


def test_a_run_that_is_sent_back_to_a_step_comes_to_the_same(killed: Killed, tmp_path: Path) -> None:
    root = killed.copy(tmp_path / "r")
    assert came_to(killed.kind, root, UNBROKEN_RESUME="40", UNBROKEN_KEEP_LAST="99") == killed.undisturbed
    assert last_start(root).step == 40
    commits = Repository.open(root, "run").commits()
    left = abandoned(commits)
    assert [commit.step for commit in commits if commit.sequence in left][:2] == [80, 60]


def test_a_run_that_is_sent_back_to_the_best_comes_to_the_same(killed: Killed, tmp_path: Path) -> None:
    root = killed.copy(tmp_path / "r")
    metric = BEST[killed.kind]
    scores = {
        c.step: c.metrics[metric] for c in Repository.open(root, "run").commits() if metric in c.metrics
    }
    best = max(scores, key=lambda step: (scores[step], -step))
    assert best < max(scores)
    done = came_to(killed.kind, root, UNBROKEN_RESUME="best", UNBROKEN_BEST=metric)
    assert done == killed.undisturbed
    assert last_start(root).step == best


def test_after_a_kill_a_run_that_was_sent_back_does_not_return_to_what_it_left(
    killed: Killed, tmp_path: Path
) -> None:
    root = killed.copy(tmp_path / "r")
    kill(killed.kind, root, at=45, UNBROKEN_RESUME="40")
    assert came_to(killed.kind, root) == killed.undisturbed
    assert 40 <= last_start(root).step < 60


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_a_killed_run_whose_disk_is_lost_goes_on_from_its_mirror(
    killed: Killed, tmp_path: Path, writer: str
) -> None:
    mirror = tmp_path / "mirror"
    shutil.copytree(killed.mirror, mirror)
    done = came_to(killed.kind, tmp_path / "new", UNBROKEN_MIRROR=str(mirror), UNBROKEN_WRITER=writer)
    assert done == killed.undisturbed
    line = last_start(tmp_path / "new")
    assert (line.step, line.tier, line.fault) == (80, "newest", "hard")
    assert any(f"from the mirror {mirror}" in reason for reason in line.reasons)
    assert Repository.open(mirror, "run").commits()[0].position == "end"


def test_without_the_mirror_the_same_command_begins_anew(killed: Killed, tmp_path: Path) -> None:
    assert came_to(killed.kind, tmp_path / "new") == killed.undisturbed
    assert last_start(tmp_path / "new").tier == "fresh"

"""Places that cannot be written to: a clear error of our own class, nothing lost, training not silently unsaved.

The tests may run as root, whom mode bits do not stop: the scripts then run as another user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from unbroken.repo.repository import Repository

PROJECT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.engine.training import Training, engine_of, train
training = Training(width=int(sys.argv[2]))
engine = engine_of(training, Path(sys.argv[1]))
"""


def run_as_nobody(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that gives up being root once everything is imported (Python may lie in root's home)."""
    start = "import os\nif os.geteuid() == 0: os.setuid(65534)\n"
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + start + script, str(root), "16"],
        cwd=PROJECT,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that any user can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o055 != 0o055:  # those that pytest has made for us alone
            folder.chmod(0o755)
    return tmp_path


def test_a_folder_without_permission_is_refused_before_training(open_path: Path) -> None:
    (open_path / "closed").mkdir(mode=0o555)
    done = run_as_nobody("engine.resume(); print('trained')", open_path / "closed" / "runs")
    assert done.returncode == 1
    assert "unbroken.errors.StoreDenied" in done.stderr
    assert "trained" not in done.stdout


def test_permission_that_is_taken_away_is_told_at_the_next_step(open_path: Path) -> None:
    root = open_path / "runs"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    done = run_as_nobody(
        "engine.resume(); train(engine, training, start=0, until=15)\n"
        "steps = Path(sys.argv[1]) / 'run' / 'steps'; steps.chmod(0o500)\n"
        "try: train(engine, training, start=15, until=25)\n"
        "finally: steps.chmod(0o700); print(training.count)",
        root,
    )
    assert "unbroken.errors.SaveFailed" in done.stderr
    assert "StoreDenied" in done.stderr
    assert done.stdout == "20\n", "training stopped where it could no longer be saved"
    assert [commit.step for commit in Repository.open(root, "run").commits()] == [10, 0]


def _cannot(why: str) -> NoReturn:
    """Skip by name, except where everything has to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        _cannot("mounting needs root")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        _cannot("mounting is not permitted here")
    return place


def test_a_full_disk_is_told_and_costs_no_more_than_the_oldest_checkpoints(small_disk: Path) -> None:
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SCRIPT + "engine.resume(); train(engine, training, start=0, until=100)",
                str(small_disk),
                "200",  # 320 KB of weights that change from save to save
            ],
            cwd=PROJECT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "DiskFullWarning: The disk was full: the checkpoints of steps 0 and 10 went" in done.stderr
        repository = Repository.open(small_disk, "run")
        commits = repository.commits()
        assert [commit.step for commit in commits] == [90, 80]
        assert all(repository.verify(commit) == [] for commit in commits)
    finally:
        subprocess.run(["umount", small_disk], check=True)

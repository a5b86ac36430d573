"""An Algorithm under Tune: each trial is a run of its own, and a killed driver costs none of them anything."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.adapters.rllib.cluster import HERE, Cluster, Runner
from tests.adapters.rllib.test_exactness import differences
from unbroken.proving.roots import copy_starts
from unbroken.repo.repository import Repository, jobs


def start(folder: Path, cluster: Cluster, log: str) -> subprocess.Popen[bytes]:
    with (folder / log).open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adapters.rllib.tune_script", str(folder)],
            cwd=HERE,
            # Else Ray tells a line of the second trial as "repeated".
            env={**cluster.environment, "RAY_DEDUP_LOGS": "0"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def kill_once_each_has_saved(driver: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + 600
    while len(saved := [newest(folder / "R", job) for job in jobs_in(folder / "R")]) < 2 or min(saved) == 0:
        assert driver.poll() is None, (folder / "killed").read_text()
        assert time.monotonic() < until
        time.sleep(0.05)
    driver.kill()
    driver.wait()


def resumes(driver: subprocess.Popen[bytes], shown: Path) -> list[str]:
    """Wait until a person who looks at the driver has read of two trials that they go on, and return at which steps.

    The trials are held meanwhile: what is said shortly before a driver ends may never be shown.
    """
    until = time.monotonic() + 600
    while len(steps := re.findall(r"unbroken: goes on at step ([\d,]+)", shown.read_text())) < 2:
        assert driver.poll() is None, shown.read_text()
        assert time.monotonic() < until, shown.read_text()
        time.sleep(0.05)
    return steps


def jobs_in(root: Path) -> list[str]:
    return sorted(jobs(root) if root.exists() else [], key=lambda job: job.rpartition("_")[2])


def newest(root: Path, job: str) -> int:
    return max((commit.step for commit in Repository.open(root, job).commits()), default=0)


def test_each_trial_of_a_killed_driver_ends_as_the_undisturbed_run_of_its_settings(
    cluster: Cluster, first: Runner, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    kill_once_each_has_saved(start(tmp_path, cluster, "killed"), tmp_path)
    resumed = start(tmp_path, cluster, "resumed")
    steps = resumes(resumed, tmp_path / "resumed")
    (tmp_path / "hold").unlink()
    status = resumed.wait(600)
    assert status == 0, (tmp_path / "resumed").read_text()
    trials = jobs_in(tmp_path / "R")
    assert len(trials) == 2
    assert len(re.findall("unbroken: goes on at step", (tmp_path / "resumed").read_text())) == 2
    assert "0" not in steps

    copy_starts(tmp_path / "R", tmp_path / "U")
    for trial, rate in zip(trials, (0.001, 0.01), strict=True):
        order: dict[str, Any] = {
            "case": "ppo", "runners": 0, "iterations": 6, "log": str(tmp_path / "log"), "job": trial,
            "training": {"lr": rate}, "root": str(tmp_path / "U"), "out": str(tmp_path / "out"),
        }  # fmt: skip
        assert first.run(**order) == 0, (tmp_path / "log").read_text()
        assert differences(tmp_path / "U", tmp_path / "R", trial) == []

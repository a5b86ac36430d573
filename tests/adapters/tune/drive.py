"""Runs a driver of Tune as a process group of its own, and reads what its trials have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from unbroken.repo.repository import Repository, jobs
from unbroken.state.snapshot import Snapshot

HERE = Path(__file__).parent
SECONDS = 150


def drive(script: str, *arguments: str, expect: int = 0, **environment: str) -> str:
    """Run a script of this folder and return all that it and its trials have written."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=SECONDS)
    finally:
        with suppress(ProcessLookupError):  # what a killed driver has left; it is of its own group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == expect, told[-5000:]
    return told


def trials(root: Path) -> list[Repository]:
    """Return the runs of an experiment's trials, in the order of the trials."""
    found = [Repository.open(root, job) for job in jobs(root)]
    return sorted(found, key=lambda repository: repository.job.rpartition("_")[2])


def final_states(root: Path) -> list[Snapshot]:
    """Return what every trial ended with."""
    states: list[Snapshot] = []
    for repository in trials(root):
        commit = repository.commits()[0]
        assert commit.position == "end"
        states.append(repository.load(commit))
    return states

"""Runs a driver of Tune with a cluster of its own, and reads what its trials have left."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.adapters.rays import carried_out
from unbroken.repo.repository import Repository, jobs
from unbroken.state.snapshot import Snapshot

HERE = Path(__file__).parent
SECONDS = 600


def drive(script: str, *arguments: str, expect: int = 0, **environment: str) -> str:
    """Run a script of this folder and return all that it and its trials have written."""
    command = [sys.executable, "-W", "ignore", str(HERE / script), *arguments]
    return carried_out(command, seconds=SECONDS, expect=expect, **environment)


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

"""Runs drivers of Ray Train with clusters of their own, and reads what their trainings leave."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.adapters.rays import carried_out
from unbroken.format import layout
from unbroken.format.pointer import Pointer
from unbroken.ray_train import read_pointer
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

SCRIPT = Path(__file__).parent / "trainings.py"
SECONDS = 900


def drive(*trainings: dict[str, Any], expect: int = 0) -> None:
    """Run trainings one after the other in one driver, and wait until it ends with this exit status."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *map(json.dumps, trainings)]
    carried_out(command, seconds=SECONDS, expect=expect, RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.1")


def repository_of(root: Path) -> Repository:
    return Repository.open(root, root.name)


def final_state(root: Path) -> Snapshot:
    repository = repository_of(root)
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


def differing(one: Path, other: Path) -> set[str]:
    """Return the components in which two runs have ended differently."""
    return {difference.component for difference in compare(final_state(one), final_state(other))}


def said(root: Path, name: str) -> Any:
    """Return what a worker has written down beside a run."""
    return json.loads(Path(f"{root}.{name}.json").read_text())


def pointers(root: Path) -> list[Pointer]:
    """Return the pointers that Ray's record names, the newest first.

    A directory of which a killed worker could not tell Ray any more stays in its storage, and is none of them.
    """
    found = [
        read_pointer(record.parent / kept["checkpoint_dir_name"])
        for record in Path(f"{root}.ray").glob("*/checkpoint_manager_snapshot.json")
        for kept in json.loads(record.read_text())["checkpoint_results"]
    ]
    return sorted(found, key=lambda pointer: pointer.sequence, reverse=True)


def cut(source: Path, target: Path, step: int, *, record: bool = False) -> Path:
    """Copy a run as a kill right after `step` was committed leaves it, with Ray's `record` of all of it or none."""
    shutil.copytree(source, target)
    repository = repository_of(target)
    for commit in repository.commits():
        if commit.step > step:
            (target / target.name / layout.commit(commit.sequence)).unlink()
    assert repository_of(target).commits()[0].step == step
    if record:
        shutil.copytree(f"{source}.ray", f"{target}.ray")
    return target

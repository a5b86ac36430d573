"""The records of saves: they outlive checkpoints, stay few, and cost no save anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from unbroken.format import saves
from unbroken.format.saves import SaveRecord
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore

from . import states


def save(writer: RunWriter, step: int, *, keep_last: int = 2) -> str:
    """Save a step as a training does; return what could not be put on record."""
    checkpoints = writer.checkpoints
    writer.write(states.snapshot(bytes([step % 256]) * 3000, step=step), states.meta(step=step))
    plan = plan_retention(checkpoints.commits(), keep_last=keep_last)
    problem = checkpoints.record(plan, durable=step / 10)
    writer.retain(plan)
    return problem


def steps(records: Iterable[SaveRecord]) -> list[int]:
    return [record.step for record in records]


def keys(store: ByteStore) -> list[str]:
    return list(store.list(saves.SAVES))


@pytest.fixture(params=["disk", "elsewhere"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ByteStore:
    """A store that can append, and one that cannot."""
    if request.param == "elsewhere":
        return MemoryStore()
    return Repository.open(tmp_path, "run", create=True).store


def test_the_records_of_deleted_checkpoints_stay(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in range(1, 8):
            assert save(writer, step) == ""
    assert [commit.step for commit in repository.commits()] == [7, 6]
    found = repository.saves()
    assert steps(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [record.sequence for record in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.durable for record in found[:5]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert found[0].reason == "schedule"
    assert found[0].inexact == 1
    assert found[0].written is not None

from __future__ import annotations

import os

import pytest

from unbroken.errors import Fenced
from unbroken.format import layout
from unbroken.repo.process import current, identify
from unbroken.repo.repository import Repository
from unbroken.store.memory import MemoryStore

from .states import process


@pytest.fixture
def repository() -> Repository:
    return Repository.over(MemoryStore(), "job", create=True)


def test_workers_are_recorded_with_their_trainer(repository: Repository) -> None:
    assert repository.workers() is None
    with repository.writer() as writer:
        writer.record_workers([identify(os.getppid())])
    found = repository.workers()
    assert found is not None
    assert found.trainer == current()
    assert found.workers == (identify(os.getppid()),)


def test_a_damaged_record_keeps_nobody_from_starting(repository: Repository) -> None:
    with repository.writer() as writer:
        writer.record_workers([process(5)])
    data = repository.store.get(layout.WORKERS)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        repository.store.put(layout.WORKERS, bytes(flipped))
        assert repository.workers() is None


def test_a_fenced_writer_records_no_workers(repository: Repository) -> None:
    old = repository.writer(owner=process(1))
    with repository.writer(owner=process(2)) as writer:
        writer.record_workers([process(7)])
        with pytest.raises(Fenced):
            old.record_workers([process(8)])
    found = repository.workers()
    assert found is not None
    assert [worker.pid for worker in found.workers] == [7]

"""Pins: what somebody is about to read stays, for a bounded time, and costs nothing else."""

from __future__ import annotations

import time

import pytest

from unbroken.repo import pins
from unbroken.repo.pruning import plan_prune
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Sequence

from . import states


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def hold(store: ByteStore, name: str, sequence: int, *, seconds: float = 600.0) -> None:
    now = time.time()
    pins.hold(store, name, {Sequence(sequence): now + seconds}, job=name, reason="", now=now)


def retain(writer: RunWriter, *, keep_last: int = 1) -> None:
    checkpoints = writer.checkpoints
    writer.retain(plan_retention(checkpoints.commits(), keep_last=keep_last, pinned=checkpoints.pinned()))


def sequences(repository: Repository) -> list[int]:
    return [commit.sequence for commit in repository.commits()]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_pinned_commit_outlives_keep_last_until_it_is_released(store: MemoryStore) -> None:
    repository = Repository.over(store, "parent", create=True)
    with repository.writer() as writer:
        first = writer.write(states.snapshot(b"1" * 3000), states.meta(step=1))
        with pins.held(store, "child", first.sequence, job="child", reason="being loaded by child"):
            for step in (2, 3, 4):
                writer.write(states.snapshot(bytes([step]) * 3000), states.meta(step=step))
                retain(writer)
            assert sequences(repository) == [4, 1]
            assert repository.verify(first) == []
        retain(writer)
        assert sequences(repository) == [4]


def test_a_pin_whose_holder_died_ends_by_itself(store: MemoryStore) -> None:
    clock = Clock()
    repository = Repository.over(store, "parent", create=True)
    with repository.writer(clock=clock) as writer:
        first = writer.write(states.snapshot(b"1" * 3000), states.meta(step=1))
        pins.hold(store, "child", {first.sequence: clock.now + 60.0}, job="child", reason="", now=clock.now)
        writer.write(states.snapshot(b"2" * 3000), states.meta(step=2))
        clock.now += 59.0
        retain(writer)
        assert sequences(repository) == [2, 1]
        clock.now += 1.0
        retain(writer)
        assert sequences(repository) == [2]
        assert store.list("pins") == []


def test_a_pin_that_cannot_be_read_holds_nothing_and_goes(store: MemoryStore) -> None:
    repository = Repository.over(store, "parent", create=True)
    with repository.writer() as writer:
        for step in (1, 2):
            writer.write(states.snapshot(bytes([step]) * 3000), states.meta(step=step))
        hold(store, "child", 1)
        data = bytearray(store.get("pins/child.json"))
        data[10] ^= 1
        store.put("pins/child.json", bytes(data))
        retain(writer)
    assert sequences(repository) == [2]
    assert store.list("pins") == []


def test_a_pin_of_what_is_gone_changes_nothing(store: MemoryStore) -> None:
    repository = Repository.over(store, "parent", create=True)
    with repository.writer() as writer:
        for step in (1, 2):
            writer.write(states.snapshot(bytes([step]) * 3000), states.meta(step=step))
        retain(writer)
        hold(store, "late", 1)
        retain(writer)
    assert sequences(repository) == [2]


@pytest.mark.parametrize("kind", [Kind.STOP_BEFORE, Kind.STOP_AFTER])
def test_a_process_that_stops_anywhere_while_pins_are_swept_leaves_a_sound_run(kind: Kind) -> None:
    base = MemoryStore()
    repository = Repository.over(base, "parent", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            writer.write(states.snapshot(bytes([step]) * 3000), states.meta(step=step))
    hold(base, "reader", 2)
    hold(base, "dead", 1, seconds=0.0)
    at = 0
    while True:
        store = FaultyStore(states.copied(base), fault=Fault(kind, at))
        try:
            with Repository.over(store, "parent").writer() as writer:
                retain(writer)
        except Stopped:
            at += 1
        else:
            break
        left = Repository.over(store.inner, "parent")
        states.assert_sound(left)
        with left.writer() as writer:
            retain(writer)
        assert sequences(left) == [3, 2]
    assert at > 5


def test_pruning_by_hand_leaves_what_is_being_read(store: MemoryStore) -> None:
    repository = Repository.over(store, "parent", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            writer.write(states.snapshot(bytes([step]) * 3000), states.meta(step=step))
    with pins.held(store, "child", Sequence(1), job="child", reason="being loaded by child"):
        plan = plan_prune(store, keep_last=1).retention
        assert plan is not None
        assert [commit.sequence for commit in plan.kept] == [3, 1]
        assert "pinned: being loaded by child" in str(plan)


def test_a_run_that_cannot_be_written_to_is_read_without_a_pin(store: MemoryStore) -> None:
    full = FaultyStore(store, fault=Fault(Kind.FULL, 0))
    with pins.held(full, "child", Sequence(1), job="child", reason=""):
        assert full.fired
    assert store.list() == []

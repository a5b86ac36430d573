"""Whose run it is, before anybody prunes it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import pytest

from unbroken.errors import RunBusy
from unbroken.format import layout
from unbroken.format.records import Lease, Worker
from unbroken.repo.process import Process, current, identify
from unbroken.repo.pruning import check_idle, holder, plan_prune
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch

from .states import meta, snapshot, tokens


@pytest.fixture
def store() -> MemoryStore:
    """A run with one checkpoint that nobody holds."""
    made = MemoryStore()
    with Repository.over(made, "job", create=True).writer(token=tokens(1)) as writer:
        writer.write(snapshot(), meta(1))
    return made


@pytest.fixture
def other() -> Iterator[Process]:
    """Another process of this machine that lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield identify(running.pid)
        running.kill()


def gone() -> Process:
    """Return a process of this machine that has ended."""
    return dataclasses.replace(current(), start="1")


def hold(store: MemoryStore, owner: Process, *, companion: Process | None = None) -> None:
    worker = None if companion is None else Worker(pid=companion.pid, process_start=companion.start)
    lease = Lease(
        job="job",
        pid=owner.pid,
        process_start=owner.start,
        host=owner.host,
        boot_id=owner.boot_id,
        epoch=Epoch(1),
        companion=worker,
    )
    store.put(layout.LEASE, seal(lease))


def test_nobody_holds_a_run_that_was_closed_or_whose_process_is_gone(store: MemoryStore) -> None:
    assert holder(store) is None
    hold(store, gone())
    assert holder(store) is None
    check_idle(store, "job", otherwise="add --take-over")


def test_a_living_process_does(store: MemoryStore, other: Process) -> None:
    hold(store, other)
    assert holder(store) == other
    with pytest.raises(RunBusy, match=f"in use by process {other.pid}"):
        check_idle(store, "job", otherwise="add --take-over")


def test_so_does_the_companion_of_one_that_is_gone(store: MemoryStore, other: Process) -> None:
    hold(store, gone(), companion=other)
    assert holder(store) == other
    with pytest.raises(RunBusy, match=f"in use by process {other.pid}"):
        check_idle(store, "job", otherwise="add --take-over")
    hold(store, gone(), companion=gone())
    assert holder(store) is None


def test_of_another_machine_nobody_can_tell(store: MemoryStore) -> None:
    elsewhere = dataclasses.replace(current(), host="elsewhere", pid=7)
    hold(store, elsewhere)
    assert holder(store) == elsewhere
    with pytest.raises(RunBusy, match="cannot be told from here") as caught:
        check_idle(store, "job", otherwise="add --take-over")
    assert "--take-over" in caught.value.hint


def test_while_it_is_held_a_plan_spares_what_the_holder_may_be_saving(
    store: MemoryStore, other: Process
) -> None:
    on_its_way = layout.pack(f"{'a' * 12}e1")
    store.put(on_its_way, b"half")
    hold(store, other)
    plan = plan_prune(store)
    assert plan.busy == other
    assert plan.collection.keys == ()
    assert [spared.key for spared in plan.collection.spared] == [on_its_way]
    store.delete(layout.LEASE)
    assert plan_prune(store).collection.keys == (on_its_way,)

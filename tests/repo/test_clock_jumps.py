"""A wall clock that jumps by years between any two moments: it decides about nothing but how long pins hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from unbroken.errors import Fenced
from unbroken.repo import pins
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.types import Sequence

from .states import assert_sound, meta, noise, process, same, snapshot, tokens

NOW = 1_700_000_000.0
YEAR = 365 * 86_400.0

Clock = Callable[[], float]
JUMPS: dict[str, tuple[float, ...]] = {
    "back": tuple(-n * YEAR for n in range(30)),
    "ahead": tuple(n * YEAR for n in range(30)),
    "back-and-forth": (0.0, 10 * YEAR, -20 * YEAR, 3 * YEAR, -1.0, 29 * YEAR, -NOW),
}


def steady() -> float:
    return NOW


def jumping(offsets: Iterable[float]) -> Clock:
    """Return a clock that shows another year at each look."""
    every = itertools.cycle(offsets)
    return lambda: NOW + next(every)


def state(step: int) -> Snapshot:
    return snapshot(noise(3000, seed=step), noise(500, seed=1000 + step))


def retain(writer: RunWriter, keep_last: int = 2) -> None:
    checkpoints = writer.checkpoints
    writer.retain(plan_retention(checkpoints.commits(), keep_last=keep_last, pinned=checkpoints.pinned()))


def take(store: ByteStore, number: int, clock: Clock) -> RunWriter:
    repository = Repository.over(store, "job", create=True)
    return repository.writer(owner=process(number), token=tokens(number), clock=clock)


def story(store: ByteStore, clock: Clock) -> list[object]:
    """Save, be overtaken, save late, go on, be closed and begin again; return all that was decided."""
    told: list[object] = []
    first = take(store, 1, clock)
    for step in range(1, 4):
        told.append(first.write(state(step), meta(step)).sequence)
        retain(first)
    first._lock._unlock()  # of one that is stopped elsewhere this machine knows no lock
    second = take(store, 2, clock)
    for step in (90, 91):
        with pytest.raises(Fenced) as fenced:
            first.write(state(step), meta(step))
        told.append(fenced.value.epoch)
    for step in range(4, 7):
        told.append(second.write(state(step), meta(step)).sequence)
        retain(second)
    second.close()
    with take(store, 3, clock) as third:
        told.append(third.write(state(2), meta(2)).sequence)  # a step that was left behind, on purpose
        retain(third)
        told.append(third.write(state(7), meta(7)).sequence)
    repository = Repository.over(store, "job")
    told += [(c.sequence, c.step, c.epoch, c.directory, c.good) for c in repository.commits()]
    told += [(c.sequence, c.epoch) for c in repository.stale()]
    told += sorted(key for key in store.list("") if not key.startswith("lock"))
    assert_sound(repository)
    assert all(same(repository.load(commit), state(commit.step)) for commit in repository.commits())
    return told


@pytest.mark.parametrize("offsets", JUMPS.values(), ids=JUMPS)
def test_whatever_the_clock_shows_the_same_is_saved_fenced_kept_and_deleted(
    offsets: tuple[float, ...],
) -> None:
    assert story(MemoryStore(), jumping(offsets)) == story(MemoryStore(), steady)


@pytest.mark.parametrize("offsets", JUMPS.values(), ids=JUMPS)
def test_on_a_disk_whose_clock_jumps_as_well_it_is_the_same(
    tmp_path: Path, offsets: tuple[float, ...]
) -> None:
    clock = jumping(offsets)
    told = story(LocalStore(tmp_path / "jumping", clock=clock), clock)
    assert told == story(LocalStore(tmp_path / "steady"), steady)


@pytest.mark.parametrize(
    ("offset", "kept"), [(0.0, [4, 3, 1]), (-20 * YEAR, [4, 3, 1]), (20 * YEAR, [4, 3])], ids=["now", "back", "ahead"]
)  # fmt: skip
def test_a_clock_that_is_ahead_ends_a_pin_and_costs_the_run_nothing_that_it_keeps(
    offset: float, kept: list[int]
) -> None:
    store = MemoryStore()
    with take(store, 1, lambda: NOW + offset) as writer:
        writer.write(state(1), meta(1))
        pins.hold(store, "reader", {Sequence(1): NOW + 600}, job="reader", reason="", now=NOW)
        for step in (2, 3, 4):
            writer.write(state(step), meta(step))
            retain(writer)
    repository = Repository.over(store, "job")
    assert [commit.sequence for commit in repository.commits()] == kept
    assert all(same(repository.load(commit), state(commit.step)) for commit in repository.commits())

"""What is counted at a ring's method: rows where it is sure, and every reason not to be."""

from __future__ import annotations

import pickle
from collections import deque
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest

from unbroken.capture.adds import AddCounter, Count
from unbroken.capture.hooks import Hook
from unbroken.capture.rings import Ring

RING = Ring(("rows",), position="pos", full="full")
CAPACITY = 8


class Buffer:
    """`add` takes rows; -1 makes it raise there, after the row is written and before it is counted."""

    def __init__(self) -> None:
        self.rows = np.zeros(CAPACITY)
        self.pos = 0
        self.full = False

    def add(self, *values: float) -> int:
        for value in values:
            self.rows[self.pos] = value
            if value == -1:
                raise ValueError("no such row")
            self.pos = (self.pos + 1) % CAPACITY
            self.full |= not self.pos
        return len(values)


class ByItself(Buffer):
    def add(self, *values: float) -> int:
        if len(values) == 1:
            return super().add(*values)
        return sum(self.add(value) for value in values)


class Batched(Buffer):
    def add(self, batch: Any) -> int:  # type: ignore[override]
        return super().add(*(batch["rows"] if isinstance(batch, dict) else batch))


def watched(buffer: Any) -> AddCounter:
    counter = AddCounter.watch(buffer, RING, CAPACITY)
    assert counter is not None
    return counter


def test_rows_are_counted_over_the_end() -> None:
    buffer = Buffer()
    counter = watched(buffer)
    for value in range(11):
        assert buffer.add(value) == 1
    assert buffer.add(1, 2, 3) == 3
    assert counter.count() == Count(rows=14, unclear=0, failed=0)


def test_a_method_that_calls_itself_counts_each_row_once() -> None:
    buffer = ByItself()
    counter = watched(buffer)
    buffer.add(1, 2, 3)
    buffer.add(*range(8))
    assert counter.count() == Count(rows=11, unclear=0, failed=0)


@pytest.mark.parametrize("count", [8, 16])
def test_whole_laps_look_like_nothing_and_are_unclear(count: int) -> None:
    buffer = Buffer()
    counter = watched(buffer)
    buffer.add(*range(count))
    assert counter.count().unclear == 1


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda v: {"rows": np.array(v)}])
def test_a_batch_longer_than_the_ring_is_unclear(form: Any) -> None:
    buffer = Batched()
    counter = watched(buffer)
    buffer.add(form(range(7)))
    assert counter.count() == Count(rows=7, unclear=0, failed=0)
    buffer.add(form(range(11)))
    assert counter.count().unclear == 1


def test_a_call_that_raises_is_told_and_raises() -> None:
    buffer = Buffer()
    counter = watched(buffer)
    with pytest.raises(ValueError, match="no such row"):
        buffer.add(1, 2, -1)
    assert counter.count().failed == 1
    buffer.add(5)
    assert counter.count().failed == 1


def test_a_position_that_moves_while_nobody_calls_is_unclear() -> None:
    buffer = Buffer()
    counter = watched(buffer)
    buffer.add(1, 2, 3)
    buffer.pos = 1  # back, …
    buffer.add(4)
    buffer.pos = 3  # … and forth: the position alone tells nothing
    assert counter.count().unclear == 2


def test_who_wraps_the_method_makes_it_unclear() -> None:
    buffer = Buffer()
    counter = watched(buffer)
    buffer.add = partial(buffer.add)  # type: ignore[method-assign]
    before = counter.count().unclear
    assert before > 0
    assert counter.count().unclear > before


def test_a_count_that_is_set_back_is_told_however_far_it_comes_again() -> None:
    buffer: Any = Buffer()
    buffer.total = 5
    counter = AddCounter.watch(buffer, Ring(("rows",), position="pos", adds="total"), CAPACITY)
    assert counter is not None
    buffer.add(1)
    assert counter.count().failed == 0
    buffer.total = 0
    buffer.add(2)
    buffer.total = 50
    assert counter.count().failed == 1


def test_removed_it_leaves_no_trace() -> None:
    buffer = Buffer()
    before = dict(vars(buffer))
    counter = watched(buffer)
    assert isinstance(vars(buffer)["add"], Hook)
    counter.remove()
    assert vars(buffer) == before
    buffer.add(1)
    assert counter.count().rows == 0


@pytest.mark.parametrize("copied", [deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_is_no_longer_counted_and_can_be_counted_itself(copied: Any) -> None:
    buffer = Buffer()
    counter = watched(buffer)
    copy = copied(buffer)
    copy.add(1)
    assert (buffer.pos, copy.pos) == (0, 1)
    assert counter.count().rows == 0
    own = watched(copy)
    copy.add(2)
    assert (own.count().rows, counter.count().rows) == (1, 0)
    own.remove()
    assert "add" not in vars(copy)


class Slotted:
    __slots__ = ("add", "pos")


class Frozen(Buffer):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "add":
            raise AttributeError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize("buffer", [Slotted(), Frozen(), deque()], ids=lambda b: type(b).__name__)
def test_what_cannot_be_watched(buffer: Any) -> None:
    assert AddCounter.watch(buffer, RING, CAPACITY) is None
    assert AddCounter.watch(Buffer(), Ring(("rows",), size="pos"), CAPACITY) is None
    assert AddCounter.watch(Buffer(), Ring(("rows",), position="pos", full="full", method="put"), 8) is None

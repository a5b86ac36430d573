"""Rows that are changed behind a ring's back are found, named and saved; whatever is meant is left in peace."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.capture.shelf import Shelf, contents
from unbroken.capture import ledger
from unbroken.capture.audit import Auditor, RowsChangedWarning
from unbroken.capture.ledger import Ledger
from unbroken.capture.policies import default_policy
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.state import walk
from unbroken.state.diff import compare

CAPACITY = 64
ROW = 160
CHUNK = 2 * ROW


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CHUNK_BYTES", CHUNK)


class Buffer:
    __unbroken_ring__ = Ring(("obs", "act"), position="pos", full="full")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.obs = np.zeros((capacity, 20))
        self.act = np.zeros((capacity, 20))
        self.pos = 0
        self.full = False

    def add(self, value: float) -> None:
        self.obs[self.pos] = self.act[self.pos] = value
        self.pos = (self.pos + 1) % len(self.obs)
        self.full |= not self.pos


class Training:
    """A full buffer, saved a few times; an audit sees `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.buffer = Buffer()
        self.source = GraftSource({"buffer": self.buffer}, default_policy())
        self.source._ledger = self.ledger = Ledger(Auditor(budget))
        self.shelf = Shelf()
        self.step = 0
        self.add(CAPACITY + 20)

    def add(self, rows: int) -> None:
        for _ in range(rows):
            self.step += 1
            self.buffer.add(self.step)

    def save(self) -> bool:
        """Save; return whether the checkpoint holds what the buffer holds."""
        saved = self.shelf.save(self.source, step=self.step)
        return contents(saved) == contents(walk.capture(self.source.roots, default_policy()))


SIZE = 2 * CAPACITY * ROW


@pytest.mark.parametrize("budget", [1, 1000, 5000, SIZE, 2 * SIZE])
@pytest.mark.parametrize("array", ["obs", "act"])
@pytest.mark.parametrize("row", [0, 33, 63])
def test_a_change_is_saved_after_at_most_so_many_commits(budget: int, array: str, row: int) -> None:
    training = Training(budget)
    training.save()
    training.save()
    getattr(training.buffer, array)[row, 3] = -5
    commits = -(-SIZE // max(budget, CHUNK))
    with pytest.warns(RowsChangedWarning, match=f"buffer/{array}"):
        right = [training.save() for _ in range(commits + 1)]
    assert right[-1]
    assert not right[0], "it was found by no audit"


def test_the_warning_says_where_since_when_and_what_to_do() -> None:
    training = Training(SIZE)
    for _ in range(3):
        training.save()
        training.add(10)
    training.save()
    step = training.step
    training.buffer.obs[60, 3] = -5
    training.save()
    with pytest.warns(RowsChangedWarning) as told:
        training.save()
    text = str(told[0].message)
    assert len(told) == 1
    assert "buffer/obs: something in rows 60 to 61 was changed" in text
    assert f"up to that of step {step:,}" in text
    assert 'in Buffer, __unbroken_ring__ = unbroken.Ring(..., anywhere=("obs",))' in text


def test_only_that_array_is_captured_whole_from_then_on_and_nobody_is_told_again() -> None:
    training = Training(SIZE)
    training.save()
    training.buffer.obs[5] = 1
    training.save()
    with pytest.warns(RowsChangedWarning):
        training.save()
    training.buffer.obs[::3] = 2
    training.add(1)
    assert training.save()
    half = SIZE // 2
    assert half < training.shelf.captured["training_state"] < half + 4 * CHUNK


@pytest.mark.parametrize("rows", [0, 1, 30, CAPACITY - 5, CAPACITY, 2 * CAPACITY])
def test_rows_that_are_added_while_it_looks_are_no_finding(rows: int) -> None:
    training = Training(SIZE)
    look = training.ledger._auditor.look

    def late(held: Any, chunks_of: Any, *, step: int) -> None:
        training.add(rows)  # training goes on before the writer comes to look
        look(held, chunks_of, step=step)

    training.ledger._auditor.look = late  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            assert training.save() == (rows == 0)


def test_a_change_that_is_undone_is_no_finding() -> None:
    training = Training(SIZE)
    training.save()
    before = training.buffer.obs[5].copy()
    training.buffer.obs[5] = 1  # as for the time of one sample
    training.save()
    training.buffer.obs[5] = before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.save()


def test_a_change_of_rows_that_are_captured_anyway_is_no_finding() -> None:
    training = Training(SIZE)
    training.save()
    training.buffer.obs[training.buffer.pos] = -1
    training.save()
    training.add(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.save()


def test_an_array_that_is_replaced_is_no_finding() -> None:
    training = Training(SIZE)
    training.save()
    training.buffer.obs[5] = 1
    training.save()
    training.buffer.obs = training.buffer.obs.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.save()


class Declared(Buffer):
    __unbroken_ring__ = Ring(("obs", "act"), position="pos", full="full", anywhere=("act",))


def test_what_is_declared_is_saved_at_once_and_never_told() -> None:
    training = Training(SIZE)
    training.buffer.__class__ = Declared
    training.save()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):
            training.buffer.act[i * 7] = -i
            assert training.save()


@pytest.mark.filterwarnings("error::unbroken.capture.audit.RowsChangedWarning")
def test_an_array_that_two_rings_write_needs_no_finding() -> None:
    """The one that is met first knows nothing of what the other adds: all of it is captured each time."""
    first, second = Buffer(), Buffer()
    first.obs = second.obs
    for value in range(CAPACITY):
        first.add(value)
    shelf = Shelf()
    source = GraftSource({"a": first, "b": second}, default_policy())
    shelf.save(source)
    second.pos = 40
    for value in range(5, 8):
        second.add(value)
        saved = shelf.save(source)
        assert contents(saved) == contents(walk.capture(source.roots, default_policy()))


def test_a_finding_in_a_run_on_disk(tmp_path: Path) -> None:
    buffer = Buffer(4 * CAPACITY)
    engine = CheckpointEngine(
        GraftSource({"buffer": buffer}, default_policy()),
        Settings(root=tmp_path, job="run"),
        environment={},
    )
    with engine:
        engine.resume()
        for step in range(1, 6 * CAPACITY):
            buffer.add(step)
        engine.save(1, reason="test", wait=True)
        buffer.obs[17, 0] = 5
        engine.save(2, reason="test", wait=True)
        truth = walk.capture({"buffer": buffer}, default_policy())
        assert compare(engine.load(2), truth) != []
        with pytest.warns(RowsChangedWarning, match="rows 16 to 17 .* up to that of step 2"):
            engine.save(3, reason="test", wait=True)
        assert compare(engine.load(3), truth) == []


def test_the_end_of_a_training_is_whole_in_any_case(tmp_path: Path) -> None:
    buffer = Buffer(4 * CAPACITY)
    engine = CheckpointEngine(
        GraftSource({"buffer": buffer}, default_policy()),
        Settings(root=tmp_path, job="run"),
        environment={},
    )
    with engine:
        engine.resume()
        for step in range(1, 6 * CAPACITY):
            buffer.add(step)
        engine.save(1, reason="test", wait=True)
        buffer.obs[17, 0] = 5
        engine.save(2, reason="end", position="end")
        assert compare(engine.load(2), walk.capture({"buffer": buffer}, default_policy())) == []

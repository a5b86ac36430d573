"""A save of a ring captures the new rows and a little around them; in doubt, everything.

Each case is saved and compared with a plain full copy. Chunks are of two rows of the one array and four of the other here.
"""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.capture.shelf import Full, Shelf, contents
from unbroken.capture import ledger
from unbroken.capture.hooks import Hook
from unbroken.capture.ledger import chunk_bytes, whole_chunks
from unbroken.capture.policies import default_policy
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource
from unbroken.state import walk

CAPACITY = 64
OBS, ACT = 160, 80
"""Bytes of a row."""
ALL = CAPACITY * (OBS + ACT)
LITTLE = 2 * (2 * OBS + 4 * ACT)
"""Two chunks an array."""


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CHUNK_BYTES", 2 * OBS)


class Buffer:
    __unbroken_ring__ = Ring(("obs", "act"), position="pos", full="full")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.obs: Any = np.zeros((capacity, 20))
        self.act: Any = np.zeros((capacity, 10), np.int64)
        self.pos = self.total = 0
        self.full = False

    def add(self, *values: int) -> None:
        for value in values:
            self.obs[self.pos] = value
            if value < 0:
                raise ValueError
            self.act[self.pos] = value
            self.pos = (self.pos + 1) % len(self.obs)
            self.full |= not self.pos
            self.total += 1

    def extend(self, *values: int) -> None:
        Buffer.add(self, *values)


class Counting(Buffer):
    __unbroken_ring__ = Ring(("obs", "act"), position="pos", adds="total")


class Stepwise(Counting):
    """Waits for three values before it adds one row."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []

    def add(self, *values: int) -> None:
        self.waiting += values
        if len(self.waiting) == 3:
            super().add(sum(self.waiting))
            self.waiting.clear()


class Tensors(Buffer):
    def __init__(self) -> None:
        super().__init__()
        torch = pytest.importorskip("torch")
        self.obs, self.act = torch.from_numpy(self.obs), torch.from_numpy(self.act)


class Training:
    """A buffer that is `held`, and its checkpoints."""

    def __init__(self, buffer: Any) -> None:
        self.shelf = Shelf()
        self.held = {"buffer": buffer}
        self.source = GraftSource({"held": self.held}, default_policy())

    def save(self, *, fail: bool = False) -> int:
        """Save, compare with a plain copy, and return how many bytes of arrays were captured."""
        with suppress(Full):
            saved = self.saved = self.shelf.save(self.source, fail=fail)
            assert contents(saved) == contents(walk.capture(self.source.roots, default_policy()))
        return self.shelf.captured["training_state"]


def filled(cls: type[Buffer] = Buffer, rows: int = 2 * CAPACITY + 11) -> Training:
    """Return a training whose buffer has been saved once."""
    training = Training(cls())
    for value in range(rows):
        training.held["buffer"].add(value)
    training.save()
    return training


def captured_after(act: Callable[[Any], object], cls: type[Buffer] = Buffer) -> int:
    training = filled(cls)
    with suppress(ValueError):
        act(training.held["buffer"])
    return training.save()


@pytest.mark.parametrize("cls", [Buffer, Counting, Tensors])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 30, CAPACITY - 2])
def test_new_rows_and_at_most_two_chunks_an_array(cls: type[Buffer], count: int) -> None:
    def adds(buffer: Buffer) -> None:
        for value in range(count):
            buffer.add(value)

    assert count * (OBS + ACT) <= captured_after(adds, cls) <= min(ALL, count * (OBS + ACT) + LITTLE)


@pytest.mark.parametrize("batch", [2, 7, 40])
def test_a_batch_costs_its_rows(batch: int) -> None:
    assert captured_after(lambda buffer: buffer.add(*range(batch))) <= batch * (OBS + ACT) + LITTLE


def test_a_buffer_that_fills_costs_what_it_grows_by() -> None:
    training = Training(Buffer())
    buffer = training.held["buffer"]
    for _ in range(CAPACITY // 8 + 3):
        buffer.add(*range(8))
        assert training.save() <= 8 * (OBS + ACT) + LITTLE


def repoint(buffer: Any) -> None:
    buffer.obs.data = buffer.obs + 1


def replace(buffer: Any) -> None:
    buffer.obs = buffer.obs + 1


def rewind(buffer: Any) -> None:
    buffer.pos -= 5
    buffer.add(1)
    buffer.pos += 4


def set_back(buffer: Any) -> None:
    """As a buffer does that begins again; the new count and position agree as if 20 rows had been added."""
    now = buffer.total
    buffer.total = buffer.pos = 0
    for value in range(now + 20):
        buffer.add(-value if value < 0 else value + 1000)


def set_back_and_lap(buffer: Any) -> None:
    """The same, while the calls do not tell how many they add."""
    buffer.total = buffer.pos = 0
    for _ in range(3):
        buffer.add(*range(500, 500 + CAPACITY))


def wrap(buffer: Any) -> None:
    buffer.add = partial(buffer.add)
    buffer.add(5)


def unseen_lap(buffer: Any) -> None:
    buffer.extend(3)
    buffer.add(*range(CAPACITY - 1))


DOUBTS: dict[str, tuple[Callable[[Any], object], type[Buffer]]] = {
    "one lap, row by row": (lambda b: [b.add(900 + i) for i in range(CAPACITY)], Buffer),
    "one lap, row by row, counted": (lambda b: [b.add(900 + i) for i in range(CAPACITY)], Counting),
    "one lap in a batch": (lambda b: b.add(*range(900, 900 + CAPACITY)), Buffer),
    "a lap and a half in a batch": (lambda b: b.add(*range(900, 900 + CAPACITY), *range(32)), Buffer),
    "an add that fails": (lambda b: b.add(-1), Buffer),
    "an add that fails, counted": (lambda b: b.add(-1), Counting),
    "a batch that fails half-way": (lambda b: b.add(1, 2, -1), Buffer),
    "rows added by another method": (lambda b: b.extend(1, 2, 3), Buffer),
    "a lap by two methods": (unseen_lap, Buffer),
    "a position set back and forth": (rewind, Buffer),
    "a count set back": (set_back, Counting),
    "a count set back, then laps": (set_back_and_lap, Counting),
    "an array replaced": (replace, Buffer),
    "a tensor's memory replaced": (repoint, Tensors),
    "a tensor replaced": (replace, Tensors),
    "the method wrapped": (wrap, Buffer),
}


@pytest.mark.filterwarnings(
    "ignore::unbroken.capture.made_later.MadeLaterWarning"
)  # the method wrapped is just that
@pytest.mark.parametrize("doubt", DOUBTS)
def test_in_doubt_everything_is_captured_once(doubt: str) -> None:
    act, cls = DOUBTS[doubt]
    training = filled(cls)
    buffer = training.held["buffer"]
    with suppress(ValueError):
        act(buffer)
    arrays = ACT if "replaced" in doubt else 0  # of the other array nothing is in doubt
    assert training.save() >= ALL - arrays * CAPACITY
    buffer.add(1)
    assert training.save() <= (ALL if doubt == "the method wrapped" else OBS + ACT + LITTLE)


def test_rows_by_another_method_are_no_doubt_where_the_buffer_counts() -> None:
    assert captured_after(lambda buffer: buffer.extend(1, 2), Counting) <= 2 * (OBS + ACT) + LITTLE


def test_calls_that_add_nothing_are_no_doubt_where_the_buffer_counts() -> None:
    def act(buffer: Any) -> None:
        for value in (1, 2, 3, 4, 5):
            buffer.add(value)

    assert captured_after(act, Stepwise) <= OBS + ACT + LITTLE


def test_an_end_that_is_marked_after_the_fact() -> None:
    training = filled()
    buffer = training.held["buffer"]
    for rows in (0, 3):
        buffer.act[buffer.pos - 1] = -7
        for value in range(rows):
            buffer.add(value)
        assert training.save() <= rows * (OBS + ACT) + LITTLE


def test_a_reset_and_what_is_added_after_it() -> None:
    training = filled()
    buffer = training.held["buffer"]
    buffer.pos, buffer.full = 0, False
    buffer.add(*range(20))
    assert training.save() == 20 * (OBS + ACT)  # all that is left
    buffer.add(*range(9))
    assert training.save() <= 9 * (OBS + ACT) + LITTLE


def test_a_buffer_made_larger_is_counted_anew() -> None:
    training = filled(rows=20)
    buffer = training.held["buffer"]
    buffer.obs, buffer.act = np.zeros((100, 20)), np.zeros((100, 10), np.int64)
    training.save()
    buffer.add(*range(79))  # over the former end, to the last row
    training.save()
    buffer.add(*range(5))
    assert training.save() <= 5 * (OBS + ACT) + LITTLE


def test_a_failed_save_is_not_built_on() -> None:
    training = filled()
    buffer = training.held["buffer"]
    buffer.add(*range(10))
    training.save(fail=True)
    buffer.add(*range(4))
    captured = training.save()
    assert 14 * (OBS + ACT) <= captured <= 14 * (OBS + ACT) + LITTLE


def test_a_capture_that_is_not_saved_is_not_built_on() -> None:
    training = filled()
    buffer = training.held["buffer"]
    buffer.add(*range(10))
    unsaved = training.source.capture()
    buffer.add(*range(4))
    training.source.capture()
    training.source.committed(unsaved)  # not the last that was captured
    assert training.save() == ALL


def test_a_restored_checkpoint_is_built_on() -> None:
    training = filled()
    other = Training(Buffer())
    other.shelf = training.shelf
    other.shelf.restore(other.source, training.saved)
    other.held["buffer"].add(*range(5))
    assert 5 * (OBS + ACT) <= other.save() <= 5 * (OBS + ACT) + LITTLE


def test_what_a_setting_keeps_from_the_program_is_captured() -> None:
    """Same shape, same position, other rows: as after `allow_changed`."""
    training = filled()
    other = Training(deepcopy(training.held["buffer"]))
    other.held["buffer"].obs[:] = 5
    other.shelf = training.shelf
    now = other.source.capture()
    assert {name: c.roots for name, c in now.components.items()} == {
        name: c.roots for name, c in training.saved.components.items()
    }
    other.source.restored(training.saved, now, different={"training_state"})
    assert other.save() == ALL


def test_a_buffer_that_was_copied_while_it_was_counted() -> None:
    training = filled()
    plain = Training(Buffer())
    training.held["buffer"] = deepcopy(training.held["buffer"])
    assert training.save() == ALL
    training.held["buffer"].add(*range(3))
    assert training.save() <= 3 * (OBS + ACT) + LITTLE
    plain.shelf.restore(plain.source, training.saved)  # into a buffer that is no copy
    assert contents(walk.capture(plain.source.roots, default_policy())) == contents(training.saved)


def test_arrays_from_a_pickle_are_views_and_captured_by_their_rows_all_the_same() -> None:
    training = filled()
    buffer = training.held["buffer"] = pickle.loads(pickle.dumps(training.held["buffer"], protocol=5))
    assert isinstance(buffer.obs.base, np.ndarray)
    training.save()
    buffer.add(*range(3))
    assert training.save() <= 3 * (OBS + ACT) + LITTLE
    training.held["slice"] = buffer.obs[7:19]
    training.held["twice"] = buffer.obs.base.reshape(buffer.obs.shape)
    assert training.save() >= CAPACITY * OBS, "others may write into it"
    twin = Training(Buffer())
    twin.held |= {"slice": np.zeros((12, 20)), "twice": np.zeros((CAPACITY, 20))}
    twin.shelf.restore(twin.source, training.saved)
    twin.held["buffer"].obs[9] = 123
    assert (twin.held["slice"][2] == 123).all(), "it lay in the same memory"
    assert (twin.held["twice"][9] == 123).all()


@pytest.mark.parametrize("cls", [Buffer, Tensors])
@pytest.mark.parametrize("rows", [1, 30, 2 * CAPACITY])
def test_what_the_second_owner_of_an_array_adds_is_captured(cls: type[Buffer], rows: int) -> None:
    training = filled(cls)
    second = training.held["second"] = cls()
    second.obs = training.held["buffer"].obs
    training.save()
    second.add(*range(rows))
    assert training.save() >= CAPACITY * OBS
    second.add(3)
    training.save()
    del training.held["second"]
    assert training.save() >= CAPACITY * OBS, "nothing was known of it meanwhile"
    training.held["buffer"].add(*range(3))
    assert training.save() <= 3 * (OBS + ACT) + LITTLE


@pytest.mark.parametrize("cls", [Buffer, Tensors])
def test_what_is_written_through_a_view_is_captured(cls: type[Buffer]) -> None:
    training = filled(cls)
    view = training.held["view"] = training.held["buffer"].obs[40:50]
    for value in range(3):
        view[value] = value
        assert training.save() >= CAPACITY * OBS


def test_a_buffer_held_twice_is_captured_once() -> None:
    training = filled()
    buffer = training.held["again"] = training.held["buffer"]
    buffer.add(*range(3))
    assert training.save() <= 3 * (OBS + ACT) + LITTLE


def test_what_is_no_longer_met_is_left_in_peace() -> None:
    training = filled()
    old = training.held.pop("buffer")
    gone = weakref.ref(old)
    training.held["buffer"] = Buffer()
    training.save()
    assert "add" not in vars(old)
    del old
    gc.collect()
    assert gone() is None, "a replaced buffer may be many gigabytes"


def test_released_it_is_as_before_and_stays_so() -> None:
    training = filled()
    buffer = training.held["buffer"]
    assert isinstance(vars(buffer)["add"], Hook)
    training.source.release()
    assert "add" not in vars(buffer)
    assert contents(training.source.capture()) == contents(training.saved)
    assert "add" not in vars(buffer)


def test_chunks_are_whole_rows_unless_a_row_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert chunk_bytes(4) == 256 << 10
    assert chunk_bytes(28_224) == 9 * 28_224
    assert chunk_bytes(1 << 20) == 1 << 20
    assert chunk_bytes(5 << 20) == 1 << 20


@pytest.mark.parametrize(
    ("spans", "ranges"),
    [
        ([(0, 1)], [(0, 20)]),
        ([(1, 2)], [(0, 20)]),
        ([(2, 3), (0, 1)], [(0, 40)]),
        ([(9, 11), (0, 1)], [(0, 20), (80, 105)]),
        ([], []),
    ],
)
def test_ranges_cover_whole_chunks(spans: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    assert whole_chunks(spans, 10, 20, 105) == ranges

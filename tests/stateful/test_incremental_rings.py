"""Rings of any shape under anything that a program does to them: what is captured row by row is what a plain
full copy holds, checkpoint by checkpoint.

Ten thousand cases. Chunks are a few rows long here, so that small arrays have many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.capture.shelf import Full, Shelf, contents
from unbroken.capture import ledger
from unbroken.capture.hooks import Hook
from unbroken.capture.policies import default_policy
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource
from unbroken.state import walk
from unbroken.state.snapshot import Snapshot

torch = pytest.importorskip("torch")

DTYPES = ["uint8", "bool", "int64", "float32", "float16"]
FORMS = ["array", "tensor", "dict"]


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "CHUNK_BYTES", 96)
        patch.setattr(ledger, "LARGEST_ROW", 160)
        patch.setattr(walk, "INLINE_BYTES", 48)
        yield


class Broken(Exception):
    """An add that failed half-way."""


class Buffer:
    """Writes `a`, `b` and `p` in this order, row by row; `p` may change anywhere."""

    __unbroken_ring__ = Ring(("a", "b", "p"), position="pos", full="full", anywhere=("p",))
    ahead = False

    def __init__(self, form: str, capacity: int, dtypes: tuple[str, ...], widths: tuple[int, ...]) -> None:
        def made(i: int) -> Any:
            shape = (capacity, widths[i]) if widths[i] else (capacity,)
            zeros = np.zeros(shape, dtypes[i])
            return torch.from_numpy(zeros) if form == "tensor" else zeros

        self.a = made(0)
        self.b = {"x": made(1), "y": made(0)} if form == "dict" else made(1)
        self.p = made(1)
        self.capacity = capacity
        self.pos = self.total = 0
        self.full = False

    def add(self, values: list[int], *, broken: bool = False) -> None:
        for value in values:
            row = self.pos
            self.a[row] = value % 120
            if self.ahead:
                self.a[(row + 1) % self.capacity] = (value + 60) % 120
            if broken:
                raise Broken
            for i, array in enumerate(self.b.values() if isinstance(self.b, dict) else (self.b,)):
                array[row] = (value + i) % 100
            self.p[row] = value % 90
            self.pos = (row + 1) % self.capacity
            self.full = self.full or self.pos == 0
            self.total += 1

    def reset(self) -> None:
        self.pos, self.full = 0, False


class Ahead(Buffer):
    __unbroken_ring__ = Ring(("a", "b", "p"), position="pos", full="full", ahead={"a": 1}, anywhere=("p",))
    ahead = True


class Counting(Buffer):
    __unbroken_ring__ = Ring(("a", "b", "p"), position="pos", adds="total", anywhere=("p",))

    def reset(self) -> None:
        self.total = self.pos = 0


class Stored(Counting):
    """Adds by a method that nobody watches."""

    __unbroken_ring__ = Ring(("a", "b", "p"), position="pos", adds="total", anywhere=("p",), method="put")

    def reset(self) -> None:
        """A buffer that counts for itself and is not watched must not set the count back."""


class Case:
    """One program, and the shelf that its checkpoints stand on."""

    def __init__(self, cls: type[Buffer], shape: tuple[Any, ...]) -> None:
        self.shelf = Shelf()
        self.cls, self.shape = cls, shape
        self.saved: Snapshot | None = None
        self.shared: bytes | None = None
        """What somebody else held of an array at the last checkpoint."""
        self.first = self.first_saved = 0
        self.value = 0
        self.unseen = 0
        """How many checkpoints may still be wrong or lead to the finding."""
        self.start(self.cls(*self.shape))

    def start(self, buffer: Buffer) -> None:
        self.held: dict[str, Any] = {"buffer": buffer}
        self.source = GraftSource({"held": self.held}, default_policy())

    @property
    def buffer(self) -> Buffer:
        buffer: Buffer = self.held["buffer"]
        return buffer

    def share(self, first: int) -> None:
        """Have somebody else hold an array of the buffer as well: all of it, or the rows from `first` on."""
        self.first = first
        self.held["other"] = self.buffer.a[first:] if first else self.buffer.a

    def values(self, count: int) -> list[int]:
        self.value += count
        return list(range(self.value - count, self.value))

    def act(self, what: int, much: int) -> None:
        buffer = self.buffer
        if what < 3:
            for value in self.values(1 + much % 5):
                buffer.add([value])
        elif what == 3:
            buffer.add(self.values(1 + much % (2 * buffer.capacity + 1)))
        elif what == 4:
            with suppress(Broken):
                buffer.add(self.values(1), broken=True)
        elif what == 5:
            self.around(buffer, much)
        elif what == 6:
            buffer.p[much % buffer.capacity] = self.value % 90  # declared
            last = buffer.b["x"] if isinstance(buffer.b, dict) else buffer.b
            last[buffer.pos - 1] = 7  # an end, marked after the fact
        elif what == 7:
            with suppress(Full):
                self.shelf.save(self.source, fail=True)
        elif what == 8 and self.saved is not None:
            self.source.release()
            self.start(self.cls(*self.shape))
            if self.shared is not None:
                self.share(self.first_saved)
            self.unseen = 0
            self.shelf.restore(self.source, self.saved)
            self.check(self.saved)
            if self.shared is not None:
                assert np.asarray(self.held["other"]).tobytes() == self.shared
        elif what == 12:
            buffer.a[much % buffer.capacity] = 77  # behind its back
            self.unseen = 2
        else:
            self.saved = self.shelf.save(self.source)
            other = self.held.get("other")
            self.shared = None if other is None else np.asarray(other).tobytes()
            self.first_saved = self.first
            self.unseen = max(0, self.unseen - 1)
            if not self.unseen:
                self.check(self.saved)

    def around(self, buffer: Buffer, much: int) -> None:
        """What happens to a buffer as a whole."""
        how = much % 7
        if how in (1, 2):
            self.held.pop("other", None)
        if how == 0:
            buffer.reset()
        elif how == 1:
            buffer.a = deepcopy(buffer.a)
            buffer.a[self.value % buffer.capacity] = 99
        elif how == 2:
            self.held["buffer"] = deepcopy(buffer)
            self.held["buffer"].add(self.values(1))
        elif how == 3:
            buffer.pos = (buffer.pos + much) % buffer.capacity if buffer.full else max(0, buffer.pos - 1)
        elif how == 4:
            self.source.forget()
        elif "other" not in self.held:
            self.share(much // 7 % buffer.capacity)
        elif how == 5:
            del self.held["other"]
        else:
            self.held["other"][much // 7 % len(self.held["other"])] = 88  # all that others hold is captured

    def check(self, loaded: Snapshot) -> None:
        assert contents(loaded) == contents(walk.capture(self.source.roots, default_policy()))


shapes = st.tuples(
    st.integers(1, 24),
    st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    st.tuples(st.sampled_from([0, 1, 3, 17, 50]), st.sampled_from([0, 2, 40])),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cls", [Buffer, Ahead, Counting, Stored])
@settings(max_examples=850, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes, script=st.binary(min_size=4, max_size=24))
def test_every_checkpoint_is_a_plain_full_copy(
    cls: type[Buffer], form: str, shape: tuple[Any, ...], script: bytes
) -> None:
    case = Case(cls, (form, *shape))
    case.act(9, 0)
    for byte in script:
        case.act(byte % 12, byte // 12)
    case.act(9, 0)
    case.source.release()
    assert not any(isinstance(value, Hook) for value in vars(case.buffer).values())


@pytest.mark.filterwarnings("ignore::unbroken.capture.audit.RowsChangedWarning")
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes, script=st.binary(min_size=4, max_size=24))
def test_what_is_changed_behind_its_back_is_in_the_second_checkpoint_after(
    form: str, shape: tuple[Any, ...], script: bytes
) -> None:
    """All of it is looked at after each commit here."""
    case = Case(Buffer, (form, *shape))
    for byte in b"\x03\x09" + script + b"\x0c\x09\x09":
        case.act(byte % 13, byte // 13)
    assert not case.unseen

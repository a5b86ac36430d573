"""What the newest durable checkpoint holds of every ring, and what has to be captured since.

A ring knows its position and how many rows were added, so what has changed is known without looking at
anything else. Rows are widened to whole chunks, and whatever cannot be told for sure is captured whole:
another array in the place of the former, a position that does not fit the count, fewer rows than before,
no count at all.

Invariant: the base of what is captured is always a checkpoint that is durable (`committed`, `restored`),
never merely the last snapshot.

Not promised: rows that somebody writes behind the buffer's back. `audit` finds those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from unbroken.capture.adds import AddCounter
from unbroken.capture.rings import Ring, RingState, read_ring, ring_of
from unbroken.state.ring import RingArray
from unbroken.state.snapshot import Base, Rows, Snapshot

CHUNK_BYTES = 256 << 10
"""About the bytes of a chunk. What a save writes beyond the new rows is up to two chunks an array."""

LARGEST_ROW = 1 << 20
"""Rows up to this many bytes are kept whole in a chunk."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A ring's array at one capture."""

    array: RingArray
    chunk: int
    position: int
    adds: int | None

    @property
    def size(self) -> int:
        return self.array.content.nbytes


@dataclass(frozen=True, slots=True)
class Known:
    """What the newest checkpoint holds of an array: as it was taken, and what it is saved as."""

    taken: Taken
    base: Base


@dataclass(slots=True)
class _Watched:
    owner: object
    ring: Ring
    counter: AddCounter | None


class Ledger:
    """Implements `state.ring.Ledger`. Used at clean points only, but for `committed`."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        """By the place of the array."""
        self._taken: list[Taken] = []
        self._watched: dict[int, _Watched] = {}
        self._states: dict[int, RingState | None] = {}

    def begin(self) -> None:
        """Begin a capture."""
        self._taken = []
        self._states = {}

    def rows(self, array: RingArray) -> Rows | None:
        """Return what has to be captured of an array; see `state.ring.Ledger`."""
        state, ring = self._state(array.owner)
        if state is None or ring is None or array.attribute in ring.anywhere:
            return None
        chunk = chunk_bytes(array.row_bytes)
        taken = Taken(array, chunk, state.position, state.adds)
        self._taken.append(taken)
        known = self.known.get(array.place)
        spans = None
        if known is not None:
            spans = changed(known, taken, state, ahead=ring.ahead.get(array.attribute, 0))
        if known is None or spans is None:
            return Rows(taken.size, chunk, ((0, array.content),))
        parts = whole_chunks(spans, array.row_bytes, chunk, taken.size)
        ranges = tuple((start, array.content[start:end]) for start, end in parts)
        return Rows(taken.size, chunk, ranges, known.base)

    def committed(self, snapshot: Snapshot) -> None:
        """Build on `snapshot` from now on: it is what was captured last, and durable."""
        self._build_on(snapshot, snapshot.components)

    def restored(self, saved: Snapshot, now: Snapshot) -> None:
        """Build on `saved` from now on: it was restored, and `now` is what was captured since."""
        components = saved.components
        # Blobs are told by their numbers, which are the same where the documents are.
        same = [
            name
            for name, part in now.components.items()
            if name in components and components[name].roots == part.roots
        ]
        self._build_on(saved, same)

    def _build_on(self, snapshot: Snapshot, components: Collection[str]) -> None:
        known: dict[str, Known] = {}
        for taken in self._taken:
            if taken.array.component in components:
                base = snapshot.components[taken.array.component].saved.get(taken.array.blob)
                if base is not None and (base.size, base.chunk) == (taken.size, taken.chunk):
                    known[taken.array.place] = Known(taken, base)
        self.known = known

    def forget(self) -> None:
        """Capture everything next time."""
        self.known = {}

    def close(self) -> None:
        """Leave every buffer as it was."""
        for watched in self._watched.values():
            if watched.counter is not None:
                watched.counter.remove()
        self._watched.clear()
        self.forget()

    def _state(self, owner: object) -> tuple[RingState | None, Ring | None]:
        watched = self._watch(owner)
        if id(owner) not in self._states:
            self._states[id(owner)] = read_ring(owner)
        state = self._states[id(owner)]
        if (
            state is not None
            and state.adds is None
            and watched.counter is not None
            and watched.counter.in_place
        ):
            state = RingState(state.capacity, state.position, state.full, watched.counter.rows, state.written)
        return state, watched.ring

    def _watch(self, owner: object) -> _Watched:
        found = self._watched.get(id(owner))
        if found is None or found.owner is not owner:
            ring = ring_of(owner)
            assert ring is not None  # the walk asks for arrays of rings only
            state = read_ring(owner)
            counter = None
            if state is not None and state.adds is None:
                counter = AddCounter.watch(owner, ring, state.capacity)
            found = self._watched[id(owner)] = _Watched(owner, ring, counter)
        return found


def chunk_bytes(row_bytes: int) -> int:
    """Return the size of a ring's chunks: whole rows, unless one is huge.

    >>> chunk_bytes(28224) // 28224
    9
    """
    if row_bytes > LARGEST_ROW:
        return LARGEST_ROW
    return row_bytes * max(1, CHUNK_BYTES // row_bytes)


def changed(known: Known, now: Taken, state: RingState, *, ahead: int = 0) -> list[tuple[int, int]] | None:
    """Return the rows that may differ from what is saved, as (from, to); None if that is not known.

    What was added lies from the former position on, `ahead` rows further where the buffer writes ahead.
    """
    before = known.taken
    if (
        before.array.holder is not now.array.holder
        or before.array.owner is not now.array.owner
        or before.array.content.ctypes.data != now.array.content.ctypes.data
        or before.chunk != now.chunk
        or before.array.row_bytes != now.array.row_bytes
        or now.size < before.size
        or before.adds is None
        or now.adds is None
        or state.position < 0
    ):
        return None
    added = now.adds - before.adds
    if not 0 <= added < state.capacity or (before.position + added) % state.capacity != state.position:
        return None
    reach = added + ahead if added else 0
    if reach >= state.capacity:
        return None
    rows = now.size // now.array.row_bytes
    end = before.position + reach
    spans = [(before.position, min(end, state.capacity)), (0, end - state.capacity)]
    if now.size > before.size:  # the saved array ends in the middle of a chunk
        spans.append((before.size // now.array.row_bytes, rows))
    return [(start, min(end, rows)) for start, end in spans if start < min(end, rows)]


def whole_chunks(
    spans: Iterable[tuple[int, int]], row_bytes: int, chunk: int, size: int
) -> list[tuple[int, int]]:
    """Return the ranges of bytes of whole chunks that cover these rows, in order, none twice."""
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        start = first * row_bytes // chunk * chunk
        end = min(-(-last * row_bytes // chunk) * chunk, size)
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges

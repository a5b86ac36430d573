"""What the newest durable checkpoint holds of every ring, and what has to be captured since.

A ring knows its position and how many rows were added, so what has changed is known without looking at
anything else. Rows are widened to whole chunks, and whatever cannot be told for sure is captured whole:
another array in the place of the former, a position that does not fit the count, two counts that
disagree, a call that raised, fewer rows than before, no count at all.

Invariant: the base of what is captured is always a checkpoint that is durable (`committed`, `restored`),
never merely the last snapshot.

Not promised: rows that somebody writes behind the buffer's back. `audit` finds those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from unbroken.capture.adds import AddCounter, Count
from unbroken.capture.audit import Auditor, ChunksOf
from unbroken.capture.rings import Ring, RingState, read_ring, ring_of
from unbroken.state.ring import RingArray
from unbroken.state.snapshot import Base, Rows, Snapshot

CHUNK_BYTES = 256 << 10
"""About the bytes of a chunk. What a save writes beyond the new rows is up to two chunks an array."""

LARGEST_ROW = 1 << 20
"""Rows up to this many bytes are kept whole in a chunk."""

BEHIND = 1
"""Rows before the position that are captured too: an end is often marked there after the fact."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A ring at one capture. `counter` stands on its buffer, and had `count`ed so much."""

    ring: Ring
    state: RingState
    counter: AddCounter | None
    count: Count | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A ring's array at one capture."""

    array: RingArray
    chunk: int
    moment: Moment

    @property
    def size(self) -> int:
        return self.array.content.nbytes

    @property
    def ahead(self) -> int:
        """How many rows further than its position the buffer may have written."""
        begun = 1 if self.moment.counter is None else 0  # by an add that failed where nobody watched
        return self.moment.ring.ahead.get(self.array.attribute, 0) + begun


@dataclass(frozen=True, slots=True)
class Known:
    """What the newest checkpoint holds of an array: as it was taken, and what it is saved as."""

    taken: Taken
    base: Base


class Ledger:
    """Implements `state.ring.Ledger`. Used at clean points only, but for `committed` and `audit`."""

    def __init__(self, auditor: Auditor | None = None) -> None:
        self.known: dict[str, Known] = {}
        """By the place of the array."""
        self._auditor = auditor or Auditor()
        self._taken: list[Taken] = []
        self._captured: Snapshot | None = None
        self._moments: dict[int, Moment] = {}
        self._counters: dict[int, AddCounter] = {}
        """By the identity of the buffer, which each counter keeps alive."""
        self._closed = False

    def begin(self) -> None:
        """Begin a capture."""
        self._taken = []
        self._captured = None
        self._moments = {}

    def end(self, snapshot: Snapshot) -> None:
        """End a capture, which gave `snapshot`. Buffers that are no longer met are left in peace."""
        self._captured = snapshot
        for identity in self._counters.keys() - self._moments.keys():
            self._counters.pop(identity).remove()

    def meet(self, owner: object) -> None:
        """Count what `owner` has added until now; see `state.ring.Ledger`."""
        if not self._closed:
            self._moment(owner)

    def rows(self, array: RingArray) -> Rows | None:
        """Return what has to be captured of an array; see `state.ring.Ledger`."""
        if self._closed:
            return None
        moment = self._moment(array.owner)
        if moment is None or array.attribute in moment.ring.anywhere:
            return None
        taken = Taken(array, chunk_bytes(array.row_bytes), moment)
        everything = Rows(taken.size, taken.chunk, ((0, array.content),))
        if array.place in self._auditor.distrusted:
            return everything
        self._taken.append(taken)
        known = self.known.get(array.place)
        spans = None if known is None else changed(known.taken, taken)
        if known is None or spans is None:
            return everything
        parts = whole_chunks(spans, array.row_bytes, taken.chunk, taken.size)
        if self._auditor.finds_more(array, parts):
            return everything
        ranges = tuple((start, array.content[start:end]) for start, end in parts)
        return Rows(taken.size, taken.chunk, ranges, known.base)

    def committed(self, snapshot: Snapshot) -> None:
        """Build on `snapshot` from now on: it is durable. On another than the last captured nothing is built."""
        self._build_on(snapshot, snapshot.components if snapshot is self._captured else ())

    def restored(self, saved: Snapshot, now: Snapshot, *, different: Collection[str] = ()) -> None:
        """Build on `saved` from now on: it was restored, and `now` is what was captured since. Left out are
        the components that came out `different`, by the user's own settings."""
        # Blobs are told by their numbers, which are the same where the documents are.
        same = [
            name
            for name, part in now.components.items()
            if name not in different
            and name in saved.components
            and saved.components[name].roots == part.roots
        ]
        self._build_on(saved, same if now is self._captured else ())

    def audit(self, chunks_of: ChunksOf, *, step: int) -> None:
        """Compare a part of what is known with live memory; see `Auditor.look`."""
        held = [(known.taken.array, known.base) for known in self.known.values()]
        self._auditor.look(held, chunks_of, step=step)

    def _build_on(self, snapshot: Snapshot, components: Collection[str]) -> None:
        known: dict[str, Known] = {}
        for taken in self._taken:
            if taken.array.component in components:
                base = snapshot.components[taken.array.component].saved.get(taken.array.blob)
                if base is not None and (base.size, base.chunk) == (taken.size, taken.chunk):
                    known[taken.array.place] = Known(taken, base)
        self.known = {} if self._closed else known
        self._captured = None

    def forget(self) -> None:
        """Capture everything next time."""
        self.known = {}
        self._captured = None

    def close(self) -> None:
        """Leave every buffer as it was, for good."""
        self._closed = True
        self.begin_anew()

    def begin_anew(self) -> None:
        """Leave every buffer as it was, until the next capture meets it."""
        for counter in self._counters.values():
            counter.remove()
        self._counters.clear()
        self.begin()
        self.forget()

    def _moment(self, owner: object) -> Moment | None:
        found = self._moments.get(id(owner))
        if found is None:
            ring, state = ring_of(owner), read_ring(owner)
            if ring is None or state is None:
                return None
            counter = self._counter(owner, ring, state.capacity)
            count = None if counter is None else counter.count()
            found = self._moments[id(owner)] = Moment(ring, state, counter, count)
        return found

    def _counter(self, owner: object, ring: Ring, capacity: int) -> AddCounter | None:
        counter = self._counters.get(id(owner))
        if counter is not None and counter.capacity != capacity:
            counter.remove()
            counter = None
        if counter is None:
            counter = AddCounter.watch(owner, ring, capacity)
            if counter is not None:
                self._counters[id(owner)] = counter
        return counter


def chunk_bytes(row_bytes: int) -> int:
    """Return the size of a ring's chunks: whole rows, unless one is huge.

    >>> chunk_bytes(28224) // 28224
    9
    """
    if row_bytes > LARGEST_ROW:
        return LARGEST_ROW
    return row_bytes * max(1, CHUNK_BYTES // row_bytes)


def added(before: Moment, now: Moment) -> int | None:
    """Return how many rows were added between two moments; None if that is not known for sure.

    A buffer's own count is believed unless the calls that were watched contradict it: it was set back, or
    one of them failed and may have written rows that it does not count.
    """
    if before.counter is not now.counter:
        return None
    seen = None
    if before.count is not None and now.count is not None:
        if before.count.failed != now.count.failed:
            return None
        seen = now.count.rows - before.count.rows
    if before.state.adds is not None and now.state.adds is not None:
        told = now.state.adds - before.state.adds
        return told if told >= (seen or 0) else None
    if before.count is not None and now.count is not None and before.count.unclear == now.count.unclear:
        return seen
    return None


def changed(before: Taken, now: Taken) -> list[tuple[int, int]] | None:
    """Return the rows that may differ from what is saved, as (from, to); None if that is not known.

    What was added lies from the former position on, further where the buffer writes ahead.
    """
    if (
        before.array.holder is not now.array.holder
        or before.array.owner is not now.array.owner
        or before.array.content.ctypes.data != now.array.content.ctypes.data
        or before.chunk != now.chunk
        or before.array.row_bytes != now.array.row_bytes
        or now.size < before.size
    ):
        return None
    new = added(before.moment, now.moment)
    capacity, start, end = now.moment.state.capacity, before.moment.state.position, now.moment.state.position
    if new is None or min(start, end) < 0 or (start + new - end) % capacity:
        return None
    if new + BEHIND + now.ahead >= capacity:
        return None
    rows = now.size // now.array.row_bytes
    first = start % capacity - BEHIND
    last = start % capacity + new + now.ahead
    spans = [(first, last), (first + capacity, last + capacity), (first - capacity, last - capacity)]
    if now.size > before.size:  # the saved array ends in the middle of a chunk
        spans.append((before.size // now.array.row_bytes, rows))
    return [(max(start, 0), min(end, rows)) for start, end in spans if max(start, 0) < min(end, rows)]


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

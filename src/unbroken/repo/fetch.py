"""Gets blobs out of packs and puts them where they belong: read, decompressed and checked on two threads.

A raw blob is read straight into its place and checked there; a compressed one is decompressed into it. So
the bytes of a large array are touched once on their way. Neighbours are read together.

Invariants: every blob is checked: its entry against the index, its size and its digest; at most `AHEAD`
reads are on their way, and beside the places a thread needs the stored bytes of one read.
Not promised: what stands in the place of a blob that was not whole.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, UnsupportedFormat
from unbroken.format import layout, pack
from unbroken.format.compression import BlobCodec
from unbroken.format.pack import ENTRY_BYTES, PackEntry
from unbroken.repo.blobs import BlobIndex, Location, pack_fault
from unbroken.repo.fault import ObjectFault
from unbroken.state.crew import Crew
from unbroken.store.base import ByteStore, read_into
from unbroken.types import Digest

THREADS = 2
AHEAD = 4
READ_BYTES = 16 << 20
"""Neighbouring blobs are read together, up to this many stored bytes"""
BLOB_BYTES = 64 << 20
"""and this many bytes of blobs, so that what compresses well keeps both threads busy, too."""
GAP = 64 << 10
"""Bytes between two blobs that cost less than a read of their own."""
ALONE = 8 << 20
"""Up to so many bytes of blobs a second thread costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a blob of `size` bytes goes: to each of `places`, all of that size. Without any it is only checked."""

    size: int
    places: tuple[memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outcome for one blob: it lies in its places, or this is what is wrong with it."""

    digest: Digest
    fault: ObjectFault | None = None


def fetch_blobs(index: BlobIndex, wanted: Mapping[Digest, Destination]) -> Iterator[Fetched]:
    """Fetch blobs; yield each once, in the order in which they lie.

    A blob that is damaged in one place is read from another, if there is one. Where none is left, the index
    is read again, once: a compaction may have moved blobs since.
    """
    fetch = _Fetch(index, wanted)
    remaining = {digest: list(index.places(digest)) for digest in wanted}
    faults: dict[Digest, ObjectFault] = {}
    known: frozenset[str] | None = frozenset(index.packs)
    alone = sum(destination.size for destination in wanted.values()) <= ALONE
    pool = None if alone else Crew(THREADS, "unbroken-fetch")
    try:
        while remaining:
            if known is not None and not all(remaining.values()):
                _look_again(index, remaining, faults, known)
                known = None
            this_time: list[tuple[Digest, Location]] = []
            for digest, places in list(remaining.items()):
                if places:
                    this_time.append((digest, places.pop(0)))
                else:
                    del remaining[digest]
                    yield Fetched(digest, faults.get(digest) or index.nowhere(digest))
            for found in _in_order(fetch.read, fetch.reads(this_time), pool):
                for one in found:
                    if one.fault is not None:
                        index.suspect.add(one.digest)
                        faults.setdefault(one.digest, one.fault)
                    else:
                        del remaining[one.digest]
                        yield one
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _look_again(
    index: BlobIndex,
    remaining: dict[Digest, list[Location]],
    faults: Mapping[Digest, ObjectFault],
    known: Collection[str],
) -> None:
    """Read the index again, and add to the places that `remaining` blobs were not looked for in."""
    index.refresh()
    for digest, left in remaining.items():
        places = [place for place in index.places(digest) if place.pack not in known or place in left]
        remaining[digest] = places
        if places and digest in faults and layout.pack_name(faults[digest].key) not in index.packs:
            index.suspect.discard(digest)  # it was not damaged: its pack has made way for another


def _in_order(
    read: Callable[[_Read], list[Fetched]], reads: Iterable[_Read], pool: Crew | None
) -> Iterator[list[Fetched]]:
    """Carry out reads, on the pool's threads if there is one; yield what came of them in their order."""
    if pool is None:
        yield from map(read, reads)
        return
    waiting: deque[Future[list[Fetched]]] = deque()
    for one in reads:
        waiting.append(pool.submit(read, one))
        if len(waiting) >= AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(frozen=True, slots=True)
class _Read:
    """Neighbours in one pack, in ascending order. `problem`: the pack is of no use."""

    key: str
    blobs: list[tuple[Digest, PackEntry]]
    problem: ObjectFault | None = None


class _Scratch(threading.local):
    """Memory of each thread, kept from one read to the next: fresh memory costs more than what goes into it."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def take(self, size: int) -> memoryview:
        """Return `size` bytes with whatever they held before."""
        if self._memory.nbytes < size:
            self._memory = np.empty(size, np.uint8).data
        return self._memory[:size]


class _Fetch:
    """One call of `fetch_blobs`: what is wanted, and what is known of the packs. `read` is for any thread."""

    def __init__(self, index: BlobIndex, wanted: Mapping[Digest, Destination]) -> None:
        self._index = index
        self._store: ByteStore = index.store
        self._wanted = wanted
        self._problems: dict[str, ObjectFault | None] = {}
        self._scratch = _Scratch()

    def reads(self, places: Iterable[tuple[Digest, Location]]) -> Iterator[_Read]:
        """Group blobs by pack, and in it by what lies side by side; look at each pack once."""
        by_pack: dict[str, list[tuple[Digest, PackEntry]]] = {}
        for digest, place in places:
            by_pack.setdefault(place.pack, []).append((digest, place.entry))
        for name, blobs in by_pack.items():
            key = layout.pack(name)
            if name not in self._problems:
                self._problems[name] = pack_fault(self._store, self._index.packs[name])
            problem = self._problems[name]
            if problem is not None:
                yield _Read(key, blobs, problem)
                continue
            blobs.sort(key=lambda blob: blob[1].offset)
            for group in _groups(blobs):
                yield _Read(key, group)

    def read(self, read: _Read) -> list[Fetched]:
        """Read neighbours, and put each where it belongs."""
        if read.problem is not None:
            return [Fetched(digest, replace(read.problem, digest=digest)) for digest, _ in read.blobs]
        start, end = read.blobs[0][1].offset, _end(read.blobs[-1][1])
        spare = max(self._spare(digest, entry) for digest, entry in read.blobs)
        memory = self._scratch.take(end - start + spare)
        # What is read in one go: by turns into scratch (headers, gaps, all that is compressed) and into
        # the place of a raw blob.
        parts: list[memoryview] = []
        done = start
        for digest, entry in read.blobs:
            if (place := self._place_of_raw(digest, entry)) is not None:
                parts += [memory[done - start : entry.offset + ENTRY_BYTES - start], place]
                done = _end(entry)
        parts.append(memory[done - start : end - start])
        try:
            there = start + read_into(self._store, read.key, start, parts)
        except (ObjectMissing, ObjectBlocked) as error:
            return [
                Fetched(digest, ObjectFault("", read.key, digest, error.message)) for digest, _ in read.blobs
            ]
        outcomes: list[Fetched] = []
        for digest, entry in read.blobs:
            at, body = entry.offset - start, entry.offset + ENTRY_BYTES - start
            place = self._place_of_raw(digest, entry)
            stored = memory[body : body + entry.stored] if place is None else place
            if _end(entry) > there:  # the object ends before the blob does
                stored = stored[: max(0, there - entry.offset - ENTRY_BYTES)]
            head = memory[at : min(body, max(at, there - start))]
            fault = self._finish(head, stored, entry, memory[end - start :], read.key)
            outcomes.append(Fetched(digest, fault))
        return outcomes

    def _finish(
        self, head: memoryview, stored: memoryview, entry: PackEntry, spare: memoryview, key: str
    ) -> ObjectFault | None:
        """Check a blob and bring it to its places, unless it was read into the only one."""
        destination = self._wanted[entry.digest]
        try:
            pack.check_entry(head, entry, key=key)
            if entry.raw != destination.size:
                raise CorruptObject(
                    f"Blob {entry.digest[:19]} in {key} has {entry.raw} bytes"
                    f" where {destination.size} were recorded."
                )
            if destination.places:
                target = destination.places[0]
            else:
                target = stored if entry.codec is BlobCodec.RAW else spare[: entry.raw]
            pack.unpack(stored, entry, target, key=key)
        except (CorruptObject, UnsupportedFormat) as error:
            return ObjectFault("", key, entry.digest, error.message)
        for place in destination.places[1:]:
            place[:] = target
        return None

    def _place_of_raw(self, digest: Digest, entry: PackEntry) -> memoryview | None:
        """Return the place into which a blob is read as it is stored."""
        destination = self._wanted[digest]
        raw = entry.codec is BlobCodec.RAW and entry.raw == destination.size
        return destination.places[0] if raw and destination.places else None

    def _spare(self, digest: Digest, entry: PackEntry) -> int:
        """Return the scratch for decompressing a blob that has no place of its own."""
        destination = self._wanted[digest]
        raw = entry.codec is BlobCodec.RAW or entry.raw != destination.size or destination.places
        return 0 if raw else entry.raw


def _end(entry: PackEntry) -> int:
    return entry.offset + entry.length


def _groups(blobs: Iterable[tuple[Digest, PackEntry]]) -> Iterator[list[tuple[Digest, PackEntry]]]:
    """Cut blobs in ascending order into groups of neighbours, each of which is read at once."""
    group: list[tuple[Digest, PackEntry]] = []
    start = end = size = 0
    for blob in blobs:
        entry = blob[1]
        apart = entry.offset - end > GAP
        if group and (apart or _end(entry) - start > READ_BYTES or size + entry.raw > BLOB_BYTES):
            yield group
            group = []
        if not group:
            start, size = entry.offset, 0
        group.append(blob)
        end = _end(entry)
        size += entry.raw
    if group:
        yield group

"""Staging: memory into which a snapshot is copied while training waits.

Fresh memory costs several times as much as memory that was touched before, and after some seconds of
idleness ten times as much. So it is kept from one save to the next and touched before training starts.

Invariant: it never holds more than its ceiling. What does not fit is not copied: `take` says so, and the
caller writes the snapshot from where it lies while training waits.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from unbroken.state.memory import copy_all
from unbroken.state.snapshot import Bytes, Rows, Snapshot

PAGE = mmap.PAGESIZE
ALIGNMENT = 64
"""Blobs start at multiples of this, for fast copies and for the tensors that are laid over them."""

SPARE = 32 << 20
"""Bytes, at most a quarter, that are taken beyond what is needed at the moment: a state that grows finds them
touched."""

ROOM = 8
"""How far it may grow in place. Room costs addresses alone; memory is what was touched."""

IDLE = 32 << 20
"""Bytes beyond twice what is needed that may lie idle. The first save of a filled buffer takes all of it, and
those after it a hundredth."""


_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Memory(Protocol):
    """Where staged bytes lie."""

    def resize(self, size: int) -> Bytes:
        """Return writable memory of at least `size` bytes; what was given before is no longer used."""
        ...

    def shrink(self, size: int) -> Bytes:
        """Give back what lies beyond the first `size` bytes, whole pages, and return those."""
        ...

    def close(self) -> None:
        """Let go of it. What was given lasts until nobody uses it any more."""
        ...


class AnonymousMemory:
    """Memory of this process."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def resize(self, size: int) -> Bytes:
        """Return memory of `size` bytes: what was given before with more behind it, as long as there is room."""
        if self._map is None or size > len(self._map):
            self._map = None  # freed before the new one is taken, when the last view of it is gone
            self._map = _room_for(size)
        return np.frombuffer(self._map, np.uint8, count=size)

    def shrink(self, size: int) -> Bytes:
        """Give back what lies beyond the first `size` bytes, whole pages, and return those."""
        assert self._map is not None
        self._map.madvise(mmap.MADV_DONTNEED, size, len(self._map) - size)
        return np.frombuffer(self._map, np.uint8, count=size)

    def close(self) -> None:
        """Let go of it. What was given lasts until nobody uses it any more."""
        self._map = None


class Staging:
    """One region of memory, reused by every save. For one snapshot at a time.

    `ceiling` returns how many bytes it may come to hold; it is asked when more are needed.
    """

    def __init__(self, ceiling: Callable[[], int], memory: Memory | None = None) -> None:
        self._ceiling = ceiling
        self._memory = memory or AnonymousMemory()
        self._region: Bytes = np.empty(0, np.uint8)

    @property
    def size(self) -> int:
        """Bytes that it holds now."""
        return self._region.nbytes

    def reserve(self, size: int) -> bool:
        """Have `size` bytes ready, and touched; return whether the ceiling, and the system, allow it."""
        if size <= self.size:
            return True
        ceiling = self._ceiling()
        if size > ceiling:
            return False
        held, address = self.size, self._region.ctypes.data
        self._region = np.empty(0, np.uint8)
        try:
            self._region = self._memory.resize(min(_with_spare(size), ceiling))
        except OSError:  # a limit on memory: none is better than an error
            return False
        touched = held // PAGE * PAGE if self._region.ctypes.data == address else 0
        self._region[touched::PAGE] = 0
        return True

    def release(self) -> None:
        """Give the memory back. What was copied there lasts as long as the snapshot that owns it."""
        self._region = np.empty(0, np.uint8)
        self._memory.close()

    def take(self, snapshot: Snapshot) -> bool:
        """Copy everything that `snapshot` left in live memory; it owns its bytes then.

        Returns False, and copies nothing, if that would not fit below the ceiling, or the system has no
        memory. The copy before it is overwritten: nobody may need it any more.
        """
        started = time.perf_counter()
        parts = list(_live_parts(snapshot))
        needed = sum(_aligned(part.nbytes) for part in parts)
        self._shrink(needed)
        if not self.reserve(needed):
            return False
        at = 0
        places: list[Bytes] = []
        for part in parts:
            places.append(self._region[at : at + part.nbytes])
            at += _aligned(part.nbytes)
        copy_all(list(zip(places, parts, strict=True)))
        shares = _live_bytes(snapshot)
        _settle(snapshot, iter(places))
        _charge(snapshot, shares, time.perf_counter() - started)
        return True

    def _shrink(self, needed: int) -> None:
        enough = _with_spare(needed)
        if self.size > 2 * enough + IDLE:
            self._region = self._memory.shrink(enough)


def own(snapshot: Snapshot) -> Snapshot:
    """Copy what `snapshot` left in live memory into memory of its own, and return it."""
    _settle(snapshot, (part.copy() for part in _live_parts(snapshot)))
    return snapshot


def _live_parts(snapshot: Snapshot) -> Iterator[Bytes]:
    for component in snapshot.components.values():
        for i in sorted(component.live):
            blob = component.blobs[i]
            if isinstance(blob, Rows):
                yield from (content for _, content in blob.ranges)
            else:
                yield blob


def _live_bytes(snapshot: Snapshot) -> dict[str, int]:
    """Return how much of each component lies in live memory."""
    return {
        name: sum(component.blobs[i].nbytes for i in component.live)
        for name, component in snapshot.components.items()
        if component.live
    }


def _charge(snapshot: Snapshot, shares: Mapping[str, int], seconds: float) -> None:
    """Add the time of a copy to the components, by their bytes: several are copied at once, by two threads."""
    whole = sum(shares.values())
    for name, share in shares.items():
        if share:
            snapshot.seconds[name] = snapshot.seconds.get(name, 0.0) + seconds * share / whole


def _settle(snapshot: Snapshot, copies: Iterator[Bytes]) -> None:
    """Put copies in the place of the parts, in their order."""
    for component in snapshot.components.values():
        for i in sorted(component.live):
            blob = component.blobs[i]
            if isinstance(blob, Rows):
                ranges = tuple((start, next(copies)) for start, _ in blob.ranges)
                component.blobs[i] = replace(blob, ranges=ranges)
            else:
                component.blobs[i] = next(copies)
        component.live.clear()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _with_spare(size: int) -> int:
    return (size + min(size // 4, SPARE)) // PAGE * PAGE + PAGE


def _room_for(size: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        room = mmap.mmap(-1, ROOM * size, flags=flags | _NO_RESERVE)
    except (OSError, ValueError):  # a limit on addresses
        room = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return room

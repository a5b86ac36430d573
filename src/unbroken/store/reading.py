"""Reading from an open file: into new memory, or straight into given memory.

What lies in the page cache is copied from there. Large parts that do not are read past it: filling the
cache takes fresh memory as large as the file, which in a process that has just started, or has idled for
some seconds, is several times slower than the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from unbroken.store.blocks import ALIGNMENT, BLOCK, Blocks
from unbroken.store.system import System

LEAST = 2 << 20
"""Reads below this go through the page cache."""
_MOST_PARTS = 512
"""Parts a call: every system takes 1,024 and more."""


def read(descriptor: int, offset: int, length: int) -> bytes:
    """Return up to `length` bytes from `offset`: fewer only where the file ends."""
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_into(
    system: System, descriptor: int, offset: int, parts: Sequence[memoryview], *, blocks: Blocks
) -> int:
    """Fill `parts` from `offset` on; return how many bytes were read: fewer only where the file ends."""
    target = _Target(parts)
    start = offset
    direct = True
    while target.left:
        if direct and target.left >= LEAST and not _is_cached(system, descriptor, offset, target.left):
            with blocks.borrowed() as block:
                count = _read_direct(system, descriptor, offset, target, block)
            if count is None:
                direct = False
                continue
        else:
            count = target.advance(system.preadv(descriptor, target.next_parts(BLOCK), offset))
        if not count:
            break
        offset += count
    return offset - start


class _Target:
    """Memory that is filled from front to back."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = [view for view in (part.cast("B") for part in parts) if view.nbytes]
        self._at = 0
        self.left = sum(view.nbytes for view in self._parts)

    def next_parts(self, most: int) -> list[memoryview]:
        """Return what is to be filled next: up to `most` bytes, in as many parts as one call takes."""
        parts: list[memoryview] = []
        for view in self._parts[self._at : self._at + _MOST_PARTS]:
            parts.append(view[:most])
            most -= parts[-1].nbytes
            if not most:
                break
        return parts

    def advance(self, count: int) -> int:
        """Note that the next `count` bytes are filled; return `count`."""
        left = count
        while left:
            view = self._parts[self._at]
            if left < view.nbytes:
                self._parts[self._at] = view[left:]
                break
            left -= view.nbytes
            self._at += 1
        self.left -= count
        return count

    def fill(self, data: memoryview) -> int:
        """Copy as much of `data` as there is room for; return how many bytes."""
        at = 0
        for part in self.next_parts(data.nbytes):
            part[:] = data[at : at + part.nbytes]
            at += part.nbytes
        return self.advance(at)


def _is_cached(system: System, descriptor: int, offset: int, length: int) -> bool:
    """Whether the next block is in the page cache, as far as three places tell."""
    last = min(BLOCK, length) - 1
    return all(system.is_cached(descriptor, offset + place) for place in (last // 2, 0, last))


def _read_direct(
    system: System, descriptor: int, offset: int, target: _Target, block: memoryview
) -> int | None:
    """Read one block past the page cache; None if the file system refuses."""
    if not system.set_direct(descriptor, on=True):
        return None
    before = offset % ALIGNMENT
    try:
        count = system.preadv(descriptor, [block], offset - before)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None
    finally:
        system.set_direct(descriptor, on=False)
    return target.fill(block[before:count])

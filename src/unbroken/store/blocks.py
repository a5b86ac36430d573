"""Aligned memory for reading and writing past the page cache."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress

BLOCK = 8 << 20
ALIGNMENT = 4096
"""Offsets, lengths and addresses are multiples of this: enough for every disk in use."""
KEPT = 3


class Blocks:
    """Blocks that are handed out and taken back. Safe for several threads.

    Three of them (24 MiB) are kept once they were needed: fresh memory would cost most exactly when saves
    are minutes apart. Further ones last as long as they are used.
    """

    def __init__(self) -> None:
        self._kept: deque[memoryview] = deque(maxlen=KEPT)

    def take(self) -> memoryview:
        """Return a block, with whatever it held before."""
        try:
            return self._kept.pop()
        except IndexError:
            return memoryview(_mapped())

    def give(self, block: memoryview) -> None:
        """Take a block back that nobody uses any more."""
        self._kept.append(block)

    @contextmanager
    def borrowed(self) -> Generator[memoryview, None, None]:
        """Give a block for a `with` block."""
        block = self.take()
        try:
            yield block
        finally:
            self.give(block)


def _mapped() -> mmap.mmap:
    # Private: a forked child must not write into blocks that its parent still uses.
    memory = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The kernel pins each page of a block for each transfer: four large ones rather than two thousand.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory

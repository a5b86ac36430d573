"""Aligned memory for reading and writing past the page cache."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

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
            # Private: a forked child must not write into blocks that its parent still uses.
            return memoryview(mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

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

"""Bytes in memory: copied and compared at the speed of the machine.

numpy lets go of Python's lock while it copies, so two threads copy faster than one wherever a single core
does not fill the memory bus. They live only as long as one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

THREADS = 2
PIECE = 4 << 20
"""Bytes that one thread copies at a time."""

ALONE = 8 << 20
"""Up to so many bytes a second thread costs more than it saves."""

BLOCK = 1 << 19
"""Bytes that are compared at a time: they stay in a core's cache."""

Bytes: TypeAlias = NDArray[np.uint8]


def copy_all(pairs: Sequence[tuple[Bytes, Bytes]]) -> None:
    """Copy the second of each pair into the first, of the same size."""
    if sum(target.nbytes for target, _ in pairs) <= ALONE:
        for target, source in pairs:
            target[:] = source
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="unbroken-copy") as pool:
        for copied in [pool.submit(_copy, target, source) for target, source in _pieces(pairs)]:
            copied.result()


def _copy(target: Bytes, source: Bytes) -> None:
    target[:] = source


def _pieces(pairs: Sequence[tuple[Bytes, Bytes]]) -> Iterator[tuple[Bytes, Bytes]]:
    for target, source in pairs:
        for at in range(0, target.nbytes, PIECE):
            yield target[at : at + PIECE], source[at : at + PIECE]


def same_bytes(left: Bytes, right: Bytes) -> bool:
    """Whether two arrays hold the same bytes. Needs no memory of its own worth mentioning."""
    if left.size != right.size:
        return False
    whole = left.size // 8 * 8
    if left[whole:].tobytes() != right[whole:].tobytes():
        return False
    for at in range(0, whole, BLOCK):
        one, other = left[at : min(at + BLOCK, whole)], right[at : min(at + BLOCK, whole)]
        if not np.array_equal(one.view(np.uint64), other.view(np.uint64)):
            return False
    return True

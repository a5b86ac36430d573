"""Bytes in memory: copied and compared at the speed of the machine.

numpy lets go of Python's lock while it copies, so two threads copy faster than one wherever a single core
does not fill the memory bus. They live only as long as one call.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from unbroken.state.crew import Crew

THREADS = 2
PIECE = 4 << 20
"""Bytes that one thread copies or compares at a time."""

ALONE = 64 << 20
"""Up to so many bytes a second thread costs more than it saves: it has to be started, and both of them
have to wait for Python's lock between two pieces."""

HUGE = 2 << 20
HUGE_FROM = 4 << 20
"""Bytes of an array that is worth a region of its own, which is rounded up to huge pages."""

BLOCK = 1 << 19
"""Bytes that are compared in one step: what it makes of them stays in a core's cache."""

Bytes: TypeAlias = NDArray[np.uint8]
Result = TypeVar("Result")


def fresh(size: int) -> Bytes:
    """Return new memory for one array, in huge pages where there are such: the system then hands it out
    in a few hundred steps instead of hundreds of thousands. It goes back as soon as nobody uses it."""
    if size < HUGE_FROM:
        return np.empty(size, np.uint8)
    region = mmap.mmap(-1, -(-size // HUGE) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without them
            region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8, count=size)


def copy_all(pairs: Sequence[tuple[Bytes, Bytes]]) -> None:
    """Copy the second of each pair into the first, of the same size."""
    if sum(target.nbytes for target, _ in pairs) <= ALONE:
        for target, source in pairs:
            target[:] = source
        return
    pieces = deque(_pieces(pairs))

    def work() -> None:
        while pieces:
            try:
                target, source = pieces.popleft()
            except IndexError:  # the other thread was faster
                return
            target[:] = source

    with Crew(THREADS - 1, "unbroken-memory") as crew:
        others = [crew.submit(work) for _ in range(THREADS - 1)]
        work()
        for other in others:
            other.result()


def move(target: Bytes, source: Bytes) -> None:
    """Copy `source` into `target`, of the same size. What came from `fresh` is given back piece by piece:
    the target's new pages are then the source's old ones, and both together take little more than one."""
    for _ in _each(_move, [(target, source)]):
        pass


def overwrite(target: Bytes, source: Bytes) -> None:
    """Copy `source` into `target`, of the same size, unless the same bytes are there already."""
    same = _common(target, source)
    if same < target.nbytes:
        copy_all([(target[same:], source[same:])])


def same_bytes(left: Bytes, right: Bytes) -> bool:
    """Whether two arrays hold the same bytes. Needs no memory of its own worth mentioning."""
    if left.size != right.size:
        return False
    return _address(left) == _address(right) or all(_each(_same, [(left, right)]))


def _address(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def bytes_of(array: NDArray[Any]) -> Bytes | None:
    """Return the memory of an array as bytes, in the order in which it lies; None if there are holes in it."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    return array.T.reshape(-1).view(np.uint8) if array.flags.f_contiguous else None


def copy_array(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy the values of `source` into `target`, of the same shape and dtype."""
    if target.nbytes > ALONE and target.flags.c_contiguous == source.flags.c_contiguous:
        into, values = bytes_of(target), bytes_of(source)
        if into is not None and values is not None:
            copy_all([(into, values)])
            return
    target[...] = source


def _each(
    function: Callable[[Bytes, Bytes], Result], pairs: Sequence[tuple[Bytes, Bytes]]
) -> Iterator[Result]:
    """Call `function` on all pieces of the pairs, on threads if they are many. Whoever stops asking ends it."""
    if sum(one.nbytes for one, _ in pairs) <= ALONE:
        for one, other in pairs:
            yield function(one, other)
        return
    pool = Crew(THREADS, "unbroken-memory")
    try:
        for job in [pool.submit(function, one, other) for one, other in _pieces(pairs)]:
            yield job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _pieces(pairs: Sequence[tuple[Bytes, Bytes]]) -> Iterator[tuple[Bytes, Bytes]]:
    for one, other in pairs:
        for at in range(0, one.nbytes, PIECE):
            yield one[at : at + PIECE], other[at : at + PIECE]


def _move(target: Bytes, source: Bytes) -> None:
    target[:] = source
    if (region := _region(source)) is not None:
        at = _address(source) - _address(np.frombuffer(region, np.uint8))
        region.madvise(mmap.MADV_DONTNEED, at, -(-source.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)


def _region(array: Bytes) -> mmap.mmap | None:
    """Return the region that an array of `fresh` lies in, if its memory can be given back in pieces."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    region = base.obj if isinstance(base, memoryview) else None
    return region if isinstance(region, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None


def _same(left: Bytes, right: Bytes) -> bool:
    return _common(left, right) == left.nbytes


def _common(left: Bytes, right: Bytes) -> int:
    """Return how many leading bytes are surely the same, all of them if all are."""
    for at in range(0, left.nbytes, BLOCK):
        one, other = left[at : at + BLOCK], right[at : at + BLOCK]
        whole = one.nbytes // 8 * 8
        if not np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)):
            return at
        if one[whole:].tobytes() != other[whole:].tobytes():
            return at
    return left.nbytes

"""What the machine itself needs: copies, durable writes and reads of the same bytes, with nothing else.

Memory is touched before it is measured, except where "fresh" is said.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import page_cache
from benchmarks.records import Limits

Bytes = NDArray[np.uint8]
BLOCK = 8 << 20
SECTOR = 4096


class SaveLimits:
    """Copies and writes of what a save changes, up to `size` bytes."""

    def __init__(self, size: int, folder: Path) -> None:
        self._folder = folder
        self._size = size
        # Whole sectors on a page boundary, as O_DIRECT wants them.
        self._memory = mmap.mmap(
            -1, -(-max(size, 1) // SECTOR) * SECTOR, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._staging = np.frombuffer(self._memory, np.uint8)
        self._staging[:] = 1
        self._threads = ThreadPoolExecutor(2)
        list(self._threads.map(time.sleep, (0.001, 0.001)))  # started before the clock

    def measure(self, changed: Sequence[Bytes]) -> Limits:
        """Measure each limit once."""
        return Limits(
            copy=self.copy(changed, threads=1),
            copy_two=self.copy(changed, threads=2),
            buffered=self._buffered(),
            direct=self._direct(),
        )

    def copy(self, changed: Sequence[Bytes], *, threads: int) -> float:
        """Return the seconds for copying everything into the same touched memory."""
        parts = _split(changed, self._staging[: self._size], threads)
        started = time.perf_counter()
        if threads == 1:
            _copy(parts[0])
        else:
            list(self._threads.map(_copy, parts))
        return time.perf_counter() - started

    def _buffered(self) -> float:
        return self._write(os.O_WRONLY, self._staging[: self._size])

    def _direct(self) -> float | None:
        try:
            return self._write(os.O_WRONLY | os.O_DIRECT, self._staging)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return None  # the file system has no O_DIRECT

    def _write(self, flags: int, data: Bytes) -> float:
        path = self._folder / "limit"
        started = time.perf_counter()
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, len(data))
            for offset in range(0, len(data), BLOCK):
                block = data[offset : offset + BLOCK].data
                while block:
                    block = block[os.write(descriptor, block) :]
            os.fsync(descriptor)
            directory = os.open(self._folder, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
            return time.perf_counter() - started
        finally:
            os.close(descriptor)
            path.unlink()


class ReadLimits:
    """Reads of one file of `size` bytes, in blocks, by one thread."""

    def __init__(self, size: int, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._size = size
        self._touched = np.ones(size, np.uint8)
        self._touched.tofile(folder / "flat")
        page_cache.sync(folder)

    def fresh(self, *, cold: bool) -> float:
        """Return the seconds for reading into memory that nobody has touched."""
        return self._read(np.empty(self._size, np.uint8), cold=cold)

    def touched(self, *, cold: bool) -> float:
        """Return the seconds for reading into memory that is in use."""
        return self._read(self._touched, cold=cold)

    def _read(self, into: Bytes, *, cold: bool) -> float:
        page_cache.drop(self._folder) if cold else page_cache.warm(self._folder)
        started = time.perf_counter()
        with (self._folder / "flat").open("rb", buffering=0) as file:
            rest = into.data
            while rest:
                rest = rest[file.readinto(rest[:BLOCK]) :]
        return time.perf_counter() - started


def _split(changed: Sequence[Bytes], staging: Bytes, threads: int) -> list[list[tuple[Bytes, Bytes]]]:
    """Return for each thread what it copies where; equal shares, cut anywhere."""
    share = -(-len(staging) // threads)
    parts: list[list[tuple[Bytes, Bytes]]] = [[] for _ in range(threads)]
    offset = 0
    for array in changed:
        begin = 0
        while begin < len(array):
            thread = offset // share
            length = min(len(array) - begin, (thread + 1) * share - offset)
            parts[thread].append((staging[offset : offset + length], array[begin : begin + length]))
            begin, offset = begin + length, offset + length
    return parts


def _copy(pairs: list[tuple[Bytes, Bytes]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)

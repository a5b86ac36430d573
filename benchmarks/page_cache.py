"""Folders of files: their bytes, their durability, and whether they lie in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

Listing = dict[str, tuple[int, int, int]]
"""Path -> inode, size, time of the last change."""


def files(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def size(folder: Path) -> int:
    """Return the bytes of all files."""
    return sum(status[1] for status in listing(folder).values())


def listing(folder: Path) -> Listing:
    """Return what is there now, to compare with later."""
    found = ((path, path.stat()) for path in files(folder))
    return {str(path): (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found}


def written_since(before: Listing, folder: Path) -> int:
    """Return the bytes of all files that are new or were replaced."""
    return sum(status[1] for path, status in listing(folder).items() if before.get(path) != status)


def sync(folder: Path) -> None:
    """Make every file and every directory durable."""
    for parent, _, names in os.walk(folder):
        for name in (*names, "."):
            _with_descriptor(Path(parent, name), os.fsync)


def warm(folder: Path) -> None:
    """Read everything once."""
    for path in files(folder):
        path.read_bytes()


def drop(folder: Path) -> int:
    """Have the page cache forget the files; return how many bytes it kept all the same."""
    sync(folder)
    for path in files(folder):
        _with_descriptor(path, _forget)
    return sum(map(_cached, files(folder)))


def _forget(descriptor: int) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _with_descriptor(path: Path, act: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def _cached(path: Path) -> int:
    """Return the bytes of a file that lie in the page cache, by mincore(2)."""
    length = path.stat().st_size
    if length == 0:
        return 0
    pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        # Writable, because ctypes takes no address of read-only memory; private, so nothing is written.
        mapped = mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        anchor = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(length), pages)
        del anchor  # else the mapping could not be closed
        mapped.close()
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(page & 1 for page in bytes(pages)) * mmap.PAGESIZE

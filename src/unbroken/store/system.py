"""The system calls through which the local store writes, and reads into given memory.

They are gathered here for one reason: what is promised about a crash is an order of these calls, and
errors of network file systems cannot be provoked on a healthy disk. Tests pass an object that records
the calls or fails them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence

from unbroken.format.buffers import Buffer
from unbroken.store.together import MOST_THREADS

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)


class System:
    """Calls of the operating system, relative to open directories."""

    at_once = MOST_THREADS
    """So many threads may wait for the disk together. One that records or fails calls wants them in one order: 1."""

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0, *, at: int | None = None) -> int:
        return os.open(path, flags, mode, dir_fd=at)

    def write(self, descriptor: int, data: Buffer) -> int:
        return os.write(descriptor, data)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        return os.preadv(descriptor, parts, offset)

    def is_cached(self, descriptor: int, offset: int) -> bool:
        """Whether the byte at `offset` can be had without the disk. Where nobody knows: True."""
        if not _NO_WAIT:
            return True
        try:
            os.preadv(descriptor, [bytearray(1)], offset, _NO_WAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system that does not say
            return True
        return True

    def set_direct(self, descriptor: int, *, on: bool) -> bool:
        """Let reads and writes pass by the page cache, or no longer; return whether they do now."""
        if not _DIRECT:
            return False
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)
        except OSError:  # a file system that cannot, as some in memory or on a network
            return False
        return on

    def start_flush(self, descriptor: int) -> None:
        """Let the kernel begin to write out what it holds of the file, without a wait."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def fsync(self, descriptor: int) -> None:
        if _FULL_SYNC is not None:  # macOS: fsync alone stops at the drive's cache
            fcntl.fcntl(descriptor, _FULL_SYNC)
        else:
            os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def fchmod(self, descriptor: int, mode: int) -> None:
        os.fchmod(descriptor, mode)

    def mkdir(self, name: str | os.PathLike[str], mode: int, *, at: int | None = None) -> None:
        os.mkdir(name, mode, dir_fd=at)

    def link(self, source: str, target: str, *, at: int) -> None:
        os.link(source, target, src_dir_fd=at, dst_dir_fd=at)

    def replace(self, source: str, target: str, *, at: int) -> None:
        os.replace(source, target, src_dir_fd=at, dst_dir_fd=at)

    def unlink(self, name: str, *, at: int) -> None:
        os.unlink(name, dir_fd=at)

    def rmdir(self, name: str, *, at: int) -> None:
        os.rmdir(name, dir_fd=at)

    def scan(self, descriptor: int) -> list[os.DirEntry[str]]:
        """Return what lies in an open directory."""
        with os.scandir(descriptor) as found:
            return list(found)


def write_all(system: System, descriptor: int, data: Buffer) -> None:
    """Write all of `data`: one call may take only a part of it."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[system.write(descriptor, view) :]


def sync_directory(system: System, descriptor: int) -> None:
    """Make the names in a directory durable, as far as the file system can.

    Some cannot sync a directory and say so with EINVAL; their operations on names are synchronous or
    not durable at all, and no other call would help.
    """
    _tolerate(_NO_DIRECTORY_SYNC, lambda: system.fsync(descriptor))


def set_mode(system: System, descriptor: int, mode: int) -> None:
    """Give a file or directory that we created these permissions, whatever the umask was.

    A group id bit that a directory inherited stays. A file system without modes refuses; there is
    nothing to protect with there.
    """
    found = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if found & 0o777 != mode & 0o777:
        _tolerate(_NO_MODES, lambda: system.fchmod(descriptor, mode | (found & 0o7000)))


def _tolerate(codes: frozenset[int], call: Callable[[], None]) -> None:
    try:
        call()
    except OSError as error:
        if error.errno not in codes:
            raise

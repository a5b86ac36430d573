"""Memory that another process can read, and that outlives the process which made it.

It has no name in any file system: whoever holds a descriptor or a mapping of it keeps it, and when nobody
does any more it is gone, however all of them ended. (Named shared memory is left behind by a kill, or is
unlinked by the helper of the process that made it.)

Not promised: systems other than Linux.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

from unbroken.state.snapshot import Bytes

_FAILED = ctypes.c_void_p(-1).value


def unsupported() -> str:
    """Return why this system has no such memory, or an empty string."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create"
    try:
        os.close(os.memfd_create("unbroken"))
    except OSError as error:
        return f"memfd_create fails: {error.strerror}"
    return ""


class SharedMemory:
    """Implements `staging.Memory`. A forked child has neither the mapping nor the descriptor: an environment
    worker that outlives the training would else keep all of it."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._region: Bytes = np.empty(0, np.uint8)
        mine: weakref.ref[SharedMemory] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(mine))

    def resize(self, size: int) -> Bytes:
        """Return new memory of `size` bytes, and let go of the former."""
        self.close()
        self.descriptor = os.memfd_create("unbroken-staging")
        os.ftruncate(self.descriptor, size)
        self._region = _mapped(self.descriptor, size)
        return self._region

    def shrink(self, size: int) -> Bytes:
        """Give back what lies beyond the first `size` bytes, whole pages, and return those."""
        self._region = self._region[:size]
        os.ftruncate(self.descriptor, size)
        return self._region

    def offset_of(self, part: Bytes) -> int | None:
        """Return where in this memory the bytes lie; None if they lie elsewhere."""
        offset = part.ctypes.data - self._region.ctypes.data
        return offset if part.nbytes and 0 <= offset <= self._region.nbytes - part.nbytes else None

    def close(self) -> None:
        """Let go of it. What was given lasts until nobody uses it any more."""
        self._region = np.empty(0, np.uint8)
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def read_shared(descriptor: int) -> Bytes:
    """Return all bytes of the memory that a descriptor stands for, to be read only."""
    size = os.fstat(descriptor).st_size
    if not size:  # nothing cannot be mapped
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)


def _mapped(descriptor: int, size: int) -> Bytes:
    """Map memory into this process and into no child of it. (`mmap.mmap` keeps a descriptor of its own,
    which a child inherits, and unmaps in the child what by then lies at the same place.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    region = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(region, _unmap, libc, address, size, os.getpid()).atexit = False
    libc.madvise(address, size, mmap.MADV_HUGEPAGE)  # not everywhere; it is only faster
    if libc.madvise(address, size, mmap.MADV_DONTFORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return np.frombuffer(memoryview(region), np.uint8)


def _unmap(libc: ctypes.CDLL, address: int, size: int, owner: int) -> None:
    if os.getpid() == owner:
        libc.munmap(address, size)


def _forget(reference: weakref.ref[SharedMemory]) -> None:
    memory = reference()
    if memory is not None:
        memory.close()

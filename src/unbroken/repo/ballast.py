"""Some room on the disk that a run holds for the records without which it can neither start nor delete.

On a disk without a free byte even that which frees room needs some first: who deletes claims the run, and puts on
record which numbers are used up. So a run keeps a small file of no meaning, and gives it up for such records alone, a
slice at a time: what is free may be another program's at once. It is whole again as soon as there is room.

Invariants: it takes never more than half of what a disk has left; nothing is decided by it.

Not promised: that the room is still there once it was given up, since others may be faster. In a bucket there is none:
a quota of a bucket is not told by what is free.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeVar

from unbroken.errors import ObjectMissing, StoreError, StoreFull
from unbroken.format import layout
from unbroken.store.base import ByteStore, SupportsLocalPath

T = TypeVar("T")

SIZE = 64 << 10
"""Bytes of a whole one. A start that saves nothing leaves two records of a block each."""
SLICE = 16 << 10
_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def free_bytes(store: ByteStore) -> int | None:
    """Return how many bytes the disk has room for; None where that cannot be told, or nobody would say."""
    if not isinstance(store, SupportsLocalPath):
        return None
    try:
        found = os.statvfs(store.local_path())
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def reserve(store: ByteStore, *, seed: str) -> None:
    """Have the ballast lie there, whole or as large as there is twice the room for. Costs a look where it does.

    `seed` is a word that no other run uses. No error: a run without ballast lacks nothing that it needs now.
    """
    if not isinstance(store, SupportsLocalPath):
        return
    try:
        there = _size(store)
        free = free_bytes(store)
        if there >= SIZE or free is None:
            return
        size = SIZE
        while size >= SLICE and size > there:
            if free >= 2 * size:
                # Of noise, and of another for each run: file systems that compress, or find what is there twice,
                # would give no room back for it.
                store.put(layout.BALLAST, random.Random(seed).randbytes(size))
                return
            size //= 2
    except StoreError:
        return  # a quota, or a disk that is full by now


def lighten(store: ByteStore) -> bool:
    """Give a slice of the ballast up; return whether there was one."""
    if not isinstance(store, SupportsLocalPath):
        return False
    try:
        file = os.open(store.local_path(layout.BALLAST), _FILE)
        try:
            size = os.fstat(file).st_size
            os.ftruncate(file, max(0, size - SLICE))  # in its place, which needs no room
            os.fsync(file)  # some file systems give it back only with this
        finally:
            os.close(file)
    except OSError:
        return False  # there is none, or the disk fails; who needs the room will say so
    return size > 0


def lacking(store: ByteStore) -> int:
    """Return how many bytes of it are not there, and will be taken as soon as there is room."""
    return max(0, SIZE - _size(store)) if isinstance(store, SupportsLocalPath) else 0


def spending(store: ByteStore, action: Callable[[], T]) -> T:
    """Carry out what writes small records, and may be repeated: as long as no room is left, in that of the ballast.

    Raises:
        StoreFull: the ballast is used up.
    """
    while True:
        try:
            return action()
        except StoreFull as error:
            if not isinstance(store, SupportsLocalPath):
                raise  # there is none
            if not lighten(store):
                raise _used_up(error, store) from error


def _size(store: ByteStore) -> int:
    try:
        return store.size(layout.BALLAST)
    except ObjectMissing:
        return 0


def _used_up(error: StoreFull, store: SupportsLocalPath) -> StoreFull:
    return StoreFull(
        error.message,
        hint=f"Free at least {2 * SIZE:,} bytes there. Then `unbroken prune {store.local_path()} --keep-last 1` finds"
        " the room that it needs, and so does a start.",
        key=error.key,
    )

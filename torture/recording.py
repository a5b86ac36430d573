"""A system that turns what a real run does to its directory into a sequence of operations with barriers.

    recording = Recording(base)
    store = LocalStore(base / "run", system=recording, token=...)
    ...                         # the run itself, on a real disk
    recording.mark(commit)      # "from here on this is promised"
    recording.events            # what `disk_states` makes disks of

`base` exists and is durable; everything below it is recorded, by inodes and not by paths, since names change
hands. Calls that change something go one after the other, so that the sequence is the one that happened.

Not promised: what is done to the directory by other means than the system that was handed in (the lock file).
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, Union

from unbroken.format.buffers import Buffer
from unbroken.store.system import System

BASE = 0
"""The inode of the directory in which all happens."""


@dataclass(frozen=True, slots=True)
class Named:
    """A file or directory got a name: it was created, made, or linked. An older holder of the name loses it."""

    directory: int
    name: str
    inode: int
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Renamed:
    """What bore one name bears another in the same directory."""

    directory: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A name was removed, of a file or of an empty directory."""

    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes were written into a file. `settled`: they are on the disk when the call returns."""

    inode: int
    offset: int
    data: bytes
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """A barrier: all that was done to this file or to the names in this directory is on the disk."""

    inode: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that a person was told after all that comes before."""

    what: object


Change: TypeAlias = Union[Named, Renamed, Unnamed, Wrote]
Event: TypeAlias = Union[Change, Synced, Mark]


class Recording(System):
    """Records what changes `base` and what lies below it."""

    at_once = 1

    def __init__(self, base: Path) -> None:
        self.events: list[Event] = []
        self._guard = threading.Lock()
        found = os.stat(base)
        self._inodes = {(found.st_dev, found.st_ino): BASE}
        self._count = 1
        self._settled: set[int] = set()

    def mark(self, what: object) -> None:
        """Note what was promised here."""
        with self._guard:
            self.events.append(Mark(what))

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0, *, at: int | None = None) -> int:
        if not flags & os.O_CREAT:
            descriptor = super().open(path, flags, mode, at=at)
            if flags & os.O_DSYNC:
                self._settled.add(descriptor)
            return descriptor
        with self._guard:
            is_new = not _is_there(path, at)
            descriptor = super().open(path, flags, mode, at=at)
            if is_new:
                self._named(os.fspath(path), at, os.fstat(descriptor))
            return descriptor

    def write(self, descriptor: int, data: Buffer) -> int:
        with self._guard:
            offset = os.fstat(descriptor).st_size  # what is written without a place is added at the end
            count = super().write(descriptor, data)
            self._wrote(descriptor, offset, data, count)
            return count

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        with self._guard:
            count = super().pwrite(descriptor, data, offset)
            self._wrote(descriptor, offset, data, count)
            return count

    def fsync(self, descriptor: int) -> None:
        with self._guard:
            super().fsync(descriptor)
            self._note(os.fstat(descriptor), Synced)

    def close(self, descriptor: int) -> None:
        self._settled.discard(descriptor)
        super().close(descriptor)

    def mkdir(self, name: str | os.PathLike[str], mode: int, *, at: int | None = None) -> None:
        with self._guard:
            super().mkdir(name, mode, at=at)
            self._named(os.fspath(name), at, os.stat(name, dir_fd=at))

    def link(self, source: str, target: str, *, at: int) -> None:
        with self._guard:
            super().link(source, target, at=at)
            inode = self._inode(os.stat(target, dir_fd=at))
            assert inode is not None
            self._note(os.fstat(at), lambda directory: Named(directory, target, inode))

    def replace(self, source: str, target: str, *, at: int) -> None:
        with self._guard:
            super().replace(source, target, at=at)
            self._note(os.fstat(at), lambda directory: Renamed(directory, source, target))

    def unlink(self, name: str, *, at: int) -> None:
        with self._guard:
            super().unlink(name, at=at)
            self._note(os.fstat(at), lambda directory: Unnamed(directory, name))

    def rmdir(self, name: str, *, at: int) -> None:
        with self._guard:
            super().rmdir(name, at=at)
            self._note(os.fstat(at), lambda directory: Unnamed(directory, name))

    def _inode(self, found: os.stat_result) -> int | None:
        return self._inodes.get((found.st_dev, found.st_ino))

    def _note(self, found: os.stat_result, event: Callable[[int], Event]) -> None:
        inode = self._inode(found)
        if inode is not None:  # what lies above `base` is not looked at
            self.events.append(event(inode))

    def _named(self, name: str, at: int | None, found: os.stat_result) -> None:
        above = os.stat(os.path.dirname(name)) if at is None else os.fstat(at)
        # A number anew: the disk gives that of a file that was removed to the next one.
        inode = self._count
        self._count += 1
        self._inodes[found.st_dev, found.st_ino] = inode
        is_directory = stat.S_ISDIR(found.st_mode)
        self._note(above, lambda directory: Named(directory, os.path.basename(name), inode, is_directory))

    def _wrote(self, descriptor: int, offset: int, data: Buffer, count: int) -> None:
        content = bytes(memoryview(data).cast("B")[:count])
        settled = descriptor in self._settled
        self._note(os.fstat(descriptor), lambda inode: Wrote(inode, offset, content, settled))


def _is_there(path: str | os.PathLike[str], at: int | None) -> bool:
    try:
        os.stat(path, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True

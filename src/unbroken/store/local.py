"""A store in a directory, durable and without half-written objects.

Order of every write, and what it prevents (`group` does it for several objects at once):

1. a temporary file with a random name in the same directory (a rename never crosses file systems);
2. write, sync the file, close it and look at the result (else power loss leaves an empty file under
   the final name; network file systems report a full disk only at sync or close);
3. sync what holds the name of a directory that is new (else it can vanish with all that is in it);
4. give the file its name: `link` if the name must be new, else `replace` (atomic, and a link never takes
   a name that exists);
5. sync the directory (else the name can vanish).

After any error at step 4 the store looks whether its own file bears the name: a network file system
can fail a call that has happened. Symbolic links below the root are not followed.

Not promised: that a file system without hard links shows no half-written *create-only* object. There
the name is taken with O_EXCL and filled afterwards; readers of create-only records check them anyway.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from itertools import groupby
from pathlib import Path

from unbroken.errors import ConfigError, ObjectBlocked, StoreError, StoreUnavailable
from unbroken.format.buffers import Content
from unbroken.store.base import Names, check_key, check_prefix, check_range, is_key
from unbroken.store.blocks import Blocks
from unbroken.store.directories import Directories
from unbroken.store.failure import blocked_by, failure, in_the_way
from unbroken.store.group import Group
from unbroken.store.publish import TEMPORARY, Publisher
from unbroken.store.reading import read, read_into
from unbroken.store.system import System, sync_directory

# O_NONBLOCK: opening a FIFO that somebody put there must not wait for a writer.
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOTE_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_DSYNC | os.O_CLOEXEC
_ATTEMPTS = 5
# Of a note: what stands there instead of a file that we may write to is replaced.
_REPLACED = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES})

NOTE_BYTES = 4096
"""Bytes of a note on the disk: one block."""


class _Kind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    TEMPORARY = "temporary"
    OTHER = "link, pipe, socket or device"


class LocalStore:
    """Objects as files below `root`, which is created by the first write.

    Safe for several threads and processes. `file_mode` and `dir_mode` hold whatever the umask is.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        file_mode: int = 0o600,
        dir_mode: int = 0o700,
        clock: Callable[[], float] = time.time,
        token: Callable[[], str] = lambda: secrets.token_hex(8),
        system: System | None = None,
    ) -> None:
        self._root = _usable(Path(os.path.abspath(root)))
        self._clock = clock
        self._system = system or System()
        self._directories = Directories(self._root, mode=dir_mode, system=self._system)
        self._blocks = Blocks()
        self._publisher = Publisher(mode=file_mode, token=token, system=self._system, blocks=self._blocks)

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    def local_path(self, key: str = "") -> Path:
        """Return the path of an object or prefix, whether or not it exists."""
        return self._root / check_prefix(key)

    def get(self, key: str) -> bytes:
        """Return the object; `ObjectMissing` if there is none."""
        with self._reading(key) as (descriptor, size):
            return read(descriptor, 0, size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`: fewer only where the object ends."""
        check_range(key, offset, length)
        with self._reading(key) as (descriptor, size):
            return read(descriptor, offset, min(length, max(0, size - offset)))

    def size(self, key: str) -> int:
        """Return the object's size in bytes; `ObjectMissing` if there is none."""
        with self._reading(key) as (_, size):
            return size

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts` with the bytes from `offset` on, straight from the file; return how many were read."""
        check_range(key, offset, 0)
        with self._reading(key) as (descriptor, _):
            return read_into(self._system, descriptor, offset, parts, blocks=self._blocks)

    def put(self, key: str, data: Content) -> None:
        """Write the object, in place of one that is there."""
        self.put_all([(key, data)])

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Write the object if there is none of this name. Return whether it was written."""
        check_key(key)
        with self._group() as group:
            group.write(key, data)
            return group.create()

    def say(self, key: str, data: bytes) -> bool:
        """Write a small object if there is none of this name, without a wait for the disk; see `SupportsWords`."""
        check_key(key)
        with self._group(durable=False) as group:
            group.write(key, data)
            return group.create()

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        """Write the objects, each while its content is produced, with few waits for the disk in all.

        No name appears before all contents are durable; the names appear in this order. If anything
        fails, names that were not given yet are not given.
        """
        with self._group() as group:
            for key, data in items:
                check_key(key)
                group.write(key, data)
            group.replace()

    def append(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Add `data` at the end of the object; make it if there is none.

        Not atomic: a crash may leave a part of `data`. Two processes never mix theirs.
        """
        parent, name = _parent(key), _name(key)
        with self._failures("writing", key):
            directory = self._directories.make(parent)
            try:
                try:
                    self._publisher.append(name, data, directory=directory, durable=durable)
                except OSError as error:
                    if (blocked := self._blocked(name, directory, "writing", key)) is None:
                        raise
                    raise blocked from error
                if durable:
                    sync_directory(self._system, directory)
            finally:
                os.close(directory)

    def note(self, key: str, data: bytes) -> None:
        """Write a small object in place, durably; see `SupportsNotes`.

        A file that is there already and stays as long as it is needs no new name and nothing of the
        journal: one write of one block, instead of several waits for the disk.
        """
        check_key(key)
        padded = data.ljust(NOTE_BYTES)
        with self._failures("writing", key):
            try:
                with self._directories.opened(_parent(key)) as directory:
                    file = self._system.open(_name(key), _NOTE_FILE, at=directory)
            except OSError as error:
                if error.errno not in _REPLACED:
                    raise
                file = -1
            if file >= 0:
                try:
                    if os.fstat(file).st_size == len(padded) and self._system.pwrite(file, padded, 0) == len(
                        padded
                    ):
                        return
                finally:
                    self._system.close(file)
        self.put(key, padded)

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`, sorted. Temporary and foreign files are left out."""
        check_prefix(prefix)
        with self._failures("listing", prefix):
            return sorted(key for key, kind in self._walk(prefix) if kind is _Kind.FILE and is_key(key))

    def children(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, sorted; of objects and of prefixes alike."""
        return self._names(prefix, {_Kind.FILE, _Kind.DIRECTORY})

    def taken(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, sorted, whatever bears them; see `SupportsTaken`."""
        return self._names(prefix, {_Kind.FILE, _Kind.DIRECTORY, _Kind.OTHER})

    def _names(self, prefix: str, kinds: Collection[_Kind]) -> Names:
        check_prefix(prefix)
        with self._failures("listing", prefix):
            return sorted(name for name, kind in self._entries(prefix) if kind in kinds and is_key(name))

    def delete(self, key: str) -> None:
        """Delete the object, and the directories that it leaves empty. No error if there is none."""
        self.delete_all([key])

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete the objects in this order, each as its key arrives; when it returns, that is durable.

        The deletions in one directory are durable before those in the next begin, so that a commit's
        record goes before what it names. Within a directory they share one wait for the disk.
        """
        # Adjacent keys only: what comes later must not be deleted earlier.
        for parent, group in groupby(keys, key=_parent):
            self._delete_in(parent, group)

    def sweep(self, *, older_than: float) -> Names:
        """Delete temporary files not touched for `older_than` seconds; return their paths in the store.

        With 0 all of them go, whatever the clock says: it may have been set back since they were written.
        """
        limit = self._clock() - older_than if older_than > 0 else math.inf
        swept: Names = []
        with self._failures("sweeping", ""):
            for path, kind in self._walk(""):
                parent, _, name = path.rpartition("/")
                if kind is not _Kind.TEMPORARY:
                    continue
                with suppress(FileNotFoundError), self._directories.opened(parent) as directory:
                    if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime <= limit:
                        self._system.unlink(name, at=directory)
                        swept.append(path)
        return sorted(swept)

    @contextmanager
    def _group(self, *, durable: bool = True) -> Generator[Group, None, None]:
        def failures(key: str) -> AbstractContextManager[None]:
            return self._failures("writing", key)

        group = Group(
            self._directories, self._publisher, system=self._system, failures=failures, durable=durable
        )
        try:
            yield group
        finally:
            group.close()

    def _delete_in(self, parent: str, keys: Iterable[str]) -> None:
        """Delete the objects of one directory."""
        directory: int | None = None
        key = ""
        try:
            for key in keys:
                with self._failures("deleting", key):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        directory = self._directories.open(parent) if directory is None else directory
                    if directory is not None:
                        with suppress(FileNotFoundError, IsADirectoryError):
                            self._system.unlink(_name(key), at=directory)
            if directory is None:
                with self._failures("deleting", key):
                    if self._directories.vanished:
                        self._directories.open("")
                return
            with self._failures("deleting", key):
                sync_directory(self._system, directory)
        finally:
            if directory is not None:
                os.close(directory)
        self._directories.prune(parent)

    @contextmanager
    def _reading(self, key: str) -> Generator[tuple[int, int], None, None]:
        parent, name = _parent(key), _name(key)
        with self._failures("reading", key):
            descriptor = self._open_file(parent, name, key)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise blocked_by(found.st_mode, doing="reading", path=self._root / key, key=key)
                yield descriptor, found.st_size
            finally:
                os.close(descriptor)

    def _open_file(self, parent: str, name: str, key: str, *, attempts: int = _ATTEMPTS) -> int:
        try:
            with self._directories.opened(parent) as directory:
                try:
                    return self._system.open(name, _READ_FILE, at=directory)
                except OSError as error:
                    if (blocked := self._blocked(name, directory, "reading", key)) is None:
                        raise
                    raise blocked from error
        except OSError as error:
            # The server has replaced what the client had cached: a fresh walk finds the new file.
            if error.errno != errno.ESTALE or attempts == 1:
                raise
        return self._open_file(parent, name, key, attempts=attempts - 1)

    def _blocked(self, name: str, directory: int, doing: str, key: str) -> ObjectBlocked | None:
        return in_the_way(name, directory=directory, doing=doing, path=self._root / key, key=key)

    def _entries(self, prefix: str) -> Sequence[tuple[str, _Kind]]:
        """Return what lies directly below `prefix`; hidden files of others are left out."""
        try:
            with self._directories.opened(prefix) as directory:
                kinds = [(entry.name, _kind(entry)) for entry in self._system.scan(directory)]
        except FileNotFoundError:
            if self._directories.vanished:
                raise  # not "there is nothing": whoever believes that deletes, or begins anew
            return []
        except NotADirectoryError:
            if not prefix:
                raise
            return []
        return [(name, kind) for name, kind in kinds if kind is not None]

    def _walk(self, prefix: str) -> Iterator[tuple[str, _Kind]]:
        """Yield path and kind of every file below `prefix`."""
        waiting = [prefix]
        while waiting:
            parent = waiting.pop()
            for name, kind in self._entries(parent):
                path = f"{parent}/{name}" if parent else name
                if kind is _Kind.DIRECTORY:
                    waiting.append(path)
                else:
                    yield path, kind

    @contextmanager
    def _failures(self, doing: str, key: str) -> Generator[None, None, None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                _usable(self._root)
            if error.errno == errno.ENOENT and self._directories.vanished:
                raise StoreUnavailable(
                    f"{doing.capitalize()} {self._root / key} failed: {self._root} is gone.",
                    hint="Has a disk been unmounted, or the directory been moved? Put it back, and start again.",
                    key=key,
                ) from error
            raise failure(error, doing=doing, path=self._root / key, key=key) from error


def _usable(root: Path) -> Path:
    """Return `root` unless it, or what it lies in, is something else than a directory."""
    for path in (root, *root.parents):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            if path.is_symlink():
                raise ConfigError(f"{path} is a link to nothing.", hint="Choose another directory.") from None
            continue
        except OSError:
            break  # what cannot be looked at is reported by the operation that needs it
        if not stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is not a directory.", hint="Choose another directory.")
        break
    return root


def _kind(entry: os.DirEntry[str]) -> _Kind | None:
    if entry.name.startswith("."):
        return _Kind.TEMPORARY if entry.name.startswith(TEMPORARY) else None
    if entry.is_dir(follow_symlinks=False):
        return _Kind.DIRECTORY
    return _Kind.FILE if entry.is_file(follow_symlinks=False) else _Kind.OTHER


def _parent(key: str) -> str:
    return check_key(key).rpartition("/")[0]


def _name(key: str) -> str:
    return check_key(key).rpartition("/")[2]

"""Files that appear whole or not at all: written under a temporary name, then named.

The order of the calls is the promise; `local` says what each step prevents.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from unbroken.format.buffers import Content
from unbroken.store.blocks import Blocks
from unbroken.store.system import System, set_mode, write_all
from unbroken.store.writing import write_content

TEMPORARY = ".tmp-"
"""How the names of unfinished files start. No key can name them."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GROWING_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Draft:
    """An open file under a temporary name."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Temporary:
    """A written, synced and closed file that waits for its name."""

    name: str
    device: int
    inode: int

    def is_named(self, name: str, directory: int) -> bool:
        """Whether this very file bears `name`."""
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class Publisher:
    """Writes files into open directories. A step that fails leaves no file behind, and none open."""

    def __init__(self, *, mode: int, token: Callable[[], str], system: System, blocks: Blocks) -> None:
        self._mode = mode
        self._token = token
        self._system = system
        self._blocks = blocks

    def begin(self, directory: int) -> Draft:
        """Create an empty temporary file."""
        name = TEMPORARY + self._token()
        return Draft(name, self._system.open(name, _NEW_FILE, self._mode, at=directory))

    def fill(self, draft: Draft, data: Content, *, directory: int) -> None:
        """Write `data` to the file."""
        with self._dropped_on_error(draft, directory):
            set_mode(self._system, draft.file, self._mode)
            write_content(self._system, draft.file, data, blocks=self._blocks)

    def start_flush(self, draft: Draft, *, directory: int) -> None:
        """Let the kernel begin to write the file out, so that one wait serves several files."""
        with self._dropped_on_error(draft, directory):
            self._system.start_flush(draft.file)

    def settle(self, draft: Draft, *, directory: int, durable: bool = True) -> Temporary:
        """Sync the file, unless it need not be `durable`, and close it."""
        with self._dropped_on_error(draft, directory):
            if durable:
                # After a failed sync the pages may be dropped: never sync the same file again.
                self._system.fsync(draft.file)
            found = os.fstat(draft.file)
        try:
            self._system.close(draft.file)
        except BaseException:
            self.discard(draft.name, directory=directory)
            raise
        return Temporary(draft.name, found.st_dev, found.st_ino)

    def drop(self, draft: Draft, *, directory: int) -> None:
        """Close the file and remove it."""
        with suppress(OSError):  # only the first error is worth a report
            self._system.close(draft.file)
        self.discard(draft.name, directory=directory)

    @contextmanager
    def _dropped_on_error(self, draft: Draft, directory: int) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            self.drop(draft, directory=directory)
            raise

    def replace(self, temporary: Temporary, name: str, *, directory: int) -> None:
        """Give the file its name, in place of another that bears it."""
        try:
            self._system.replace(temporary.name, name, at=directory)
        except OSError as error:
            if temporary.is_named(name, directory):
                return
            if error.errno != errno.EISDIR or not self._remove_empty(name, directory):
                raise
            self._system.replace(temporary.name, name, at=directory)

    def _remove_empty(self, name: str, directory: int) -> bool:
        """Remove the directory of this name if nothing is in it: it holds nothing of anybody."""
        try:
            self._system.rmdir(name, at=directory)
        except OSError:
            return False
        return True

    def append(self, name: str, data: bytes, *, directory: int, durable: bool = True) -> None:
        """Add `data` at the end of the file, which is made if it is not there, and sync it if it is to be `durable`."""
        file = self._system.open(name, _GROWING_FILE, self._mode, at=directory)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):  # a pipe that somebody reads
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            if found.st_size == 0:
                set_mode(self._system, file, self._mode)
            write_all(self._system, file, data)
            if durable:
                self._system.fsync(file)
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                self._system.close(file)
            raise
        self._system.close(file)

    def create(self, temporary: Temporary, name: str, *, directory: int) -> bool:
        """Give the file its name if no other bears it; return whether it does now."""
        try:
            self._system.link(temporary.name, name, at=directory)
        except OSError as error:
            if temporary.is_named(name, directory):
                return True
            if error.errno == errno.EEXIST:
                return False
            if error.errno in _NO_LINKS:
                return self._copy(temporary, name, directory)
            raise
        return True

    def _copy(self, temporary: Temporary, name: str, directory: int) -> bool:
        source = self._system.open(temporary.name, _OWN_FILE, at=directory)
        try:
            try:
                file = self._system.open(name, _NEW_FILE, self._mode, at=directory)
            except FileExistsError:
                return False
            # From here on the name is ours; a step that fails removes what stands half-written there.
            own = Draft(name, file)
            self.fill(own, _stream(source), directory=directory)
            self.settle(own, directory=directory)
        finally:
            os.close(source)
        return True

    def discard(self, name: str, *, directory: int) -> None:
        """Remove a file that is not needed."""
        # What cannot be removed now is swept later; it never hides what happened to the object.
        with suppress(OSError):
            self._system.unlink(name, at=directory)


def _stream(descriptor: int) -> Iterator[bytes]:
    offset = 0
    while part := os.pread(descriptor, _COPY_BYTES, offset):
        offset += len(part)
        yield part

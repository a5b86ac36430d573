"""Systems that fail one call by its number, and systems that count, for tests that try every call.

    counting = Troubled()
    run(LocalStore(root, system=counting))
    for number, call in enumerate(counting.made): ...   # Troubled(number, code, ...)

Not promised: that a real disk returns each error at each call. Code must come out right all the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from unbroken.format.buffers import Buffer
from unbroken.store.system import System
from unbroken.testing.faulty_system import os_error

T = TypeVar("T")

CHANGES = frozenset(
    {"create", "write", "pwrite", "fsync", "close", "fchmod", "mkdir", "link", "replace", "unlink", "rmdir"}
)
"""The calls that change something, or tell whether a change has arrived."""


class TooMany(Exception):
    """More calls than any recovery may take: it would never end."""


class Counted(System):
    """Passes each call on by way of `_call`, with a name and the path it is about, as far as known."""

    at_once = 1

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        raise NotImplementedError

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0, *, at: int | None = None) -> int:
        opened = System.open
        name = "create" if flags & os.O_CREAT else "open"
        descriptor = self._call(name, os.fspath(path), lambda: opened(self, path, flags, mode, at=at))
        self._paths[descriptor] = os.fspath(path)
        return descriptor

    def write(self, descriptor: int, data: Buffer) -> int:
        return self._call("write", self._path(descriptor), lambda: os.write(descriptor, data))

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        return self._call("pwrite", self._path(descriptor), lambda: os.pwrite(descriptor, data, offset))

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        return self._call("preadv", self._path(descriptor), lambda: os.preadv(descriptor, parts, offset))

    def fsync(self, descriptor: int) -> None:
        self._call("fsync", self._path(descriptor), lambda: os.fsync(descriptor))

    def close(self, descriptor: int) -> None:
        self._call("close", self._path(descriptor), lambda: os.close(descriptor))

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._call("fchmod", self._path(descriptor), lambda: os.fchmod(descriptor, mode))

    def mkdir(self, name: str | os.PathLike[str], mode: int, *, at: int | None = None) -> None:
        made = System.mkdir
        self._call("mkdir", os.fspath(name), lambda: made(self, name, mode, at=at))

    def link(self, source: str, target: str, *, at: int) -> None:
        self._call("link", target, lambda: System.link(self, source, target, at=at))

    def replace(self, source: str, target: str, *, at: int) -> None:
        self._call("replace", target, lambda: System.replace(self, source, target, at=at))

    def unlink(self, name: str, *, at: int) -> None:
        self._call("unlink", name, lambda: System.unlink(self, name, at=at))

    def rmdir(self, name: str, *, at: int) -> None:
        self._call("rmdir", name, lambda: System.rmdir(self, name, at=at))

    def scan(self, descriptor: int) -> list[os.DirEntry[str]]:
        return self._call("scan", self._path(descriptor), lambda: System.scan(self, descriptor))

    def _path(self, descriptor: int) -> str:
        return self._paths.get(descriptor, "")


class Bounded(Counted):
    """Raises `TooMany` at the call after the `most`-th."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.calls = 0
        self._most = most

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls > self._most:
            raise TooMany(f"{name} {path} is call number {self.calls}")
        return call()


class Troubled(Counted):
    """Fails the call of number `at`, counted from 0, with the error `code`: before it happens, or `after` it did.

    `for_ever`: every later call that could fail in the same way does so, too, as on a disk that is full or
    is gone. What is `counted` are calls that change something, or all. `happens` is called there as well.
    """

    def __init__(
        self,
        at: int = -1,
        code: int = 0,
        *,
        after: bool = False,
        for_ever: bool = False,
        counted: frozenset[str] = CHANGES,
        happens: Callable[[], None] | None = None,
        most: int = 50_000,
    ) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []
        """The calls that were counted: name and path."""
        self._at = at
        self._code = code
        self._after = after
        self._for_ever = for_ever
        self._counted = counted
        self._happens = happens
        self._calls = 0
        self._most = most

    @property
    def fired(self) -> bool:
        """Whether the fault has happened. A test that does not look may have tested nothing."""
        return 0 <= self._at < len(self.made)

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        self._calls += 1
        if self._calls > self._most:
            raise TooMany(f"{name} {path} is call number {self._calls}")
        if name not in self._counted:
            return call()
        number = len(self.made)
        self.made.append((name, path))
        if self._happens is not None and number == self._at:
            self._happens()
        fails = self._code and (number == self._at or (self._for_ever and 0 <= self._at < number))
        if not fails or (self._for_ever and not can_return(self._code, name)):
            return call()
        if name == "close" or self._after:
            result = call()  # a descriptor is closed whatever `close` says
            if name in ("create", "open") and isinstance(result, int):
                os.close(result)  # whoever is told that it failed has none
        raise os_error(self._code)


def can_return(code: int, call: str) -> bool:
    """Whether a disk in the state that `code` tells of refuses this call."""
    if code == errno.EDQUOT:  # told late, by disks on a network
        return call in ("create", "write", "pwrite", "fsync", "close")
    if code == errno.EACCES:
        return call in ("create", "open", "mkdir", "link", "replace", "unlink", "rmdir")
    if code == errno.ENOSPC:
        return call in ("create", "write", "pwrite", "fsync", "close", "mkdir", "link", "replace")
    if code == errno.EROFS:
        return call not in ("close", "open", "preadv", "scan")
    return True

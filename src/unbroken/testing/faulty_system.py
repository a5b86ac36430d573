"""Operating systems that record, or that fail the way network file systems and full disks do.

Handed to `LocalStore(system=...)`. What cannot be had from a healthy disk is had here: a call that
fails although it has happened, a sync that reports a full quota, a disk without hard links.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from unbroken.format.buffers import Buffer
from unbroken.store.system import System
from unbroken.testing.faulty_store import Stopped

T = TypeVar("T")


def os_error(code: int) -> OSError:
    """Return the error of this number, with its usual text."""
    return OSError(code, os.strerror(code))


class Intercepted(System, ABC):
    """Passes each call on by way of `_call`, with a name and the path it is about, as far as known.

    The names are those of the methods; an `open` that may create a file is a `create`.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    @abstractmethod
    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        """Carry out `call`, or fail in its place."""

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


class FailingSystem(Intercepted):
    """Fails the calls for which `fails` returns an error number, before or after they happen.

    `fails(call, path)` gets the name of the call and the path it is about, as far as known.
    """

    def __init__(self, fails: Callable[[str, str], int], *, after: bool = False) -> None:
        super().__init__()
        self._fails = fails
        self._after = after

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        code = self._fails(name, path)
        if not code:
            return call()
        if self._after or name == "close":
            call()  # a descriptor is closed whatever `close` says
        raise os_error(code)


def fail(call: str, code: int, *, path: str = "", times: int = 10**9) -> Callable[[str, str], int]:
    """Return a rule for `FailingSystem`: `call` on a path that contains `path` fails, so many times."""
    left = [times]

    def rule(name: str, where: str) -> int:
        if name != call or path not in where or not left[0]:
            return 0
        left[0] -= 1
        return code

    return rule


class RecordingSystem(System):
    """Writes down each call as (name, path), paths relative to the root where they are known."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def _path(self, descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def _note(self, name: str, path: str, at: int | None = None) -> None:
        self.calls.append((name, path if at is None else f"{self._path(at)}/{path}"))

    def write(self, descriptor: int, data: Buffer) -> int:
        self._note("write", self._path(descriptor))
        return super().write(descriptor, data)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        self._note("pwrite", self._path(descriptor))
        return super().pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        self._note("fsync", self._path(descriptor))
        super().fsync(descriptor)

    def close(self, descriptor: int) -> None:
        self._note("close", self._path(descriptor))
        super().close(descriptor)

    def mkdir(self, name: str | os.PathLike[str], mode: int, *, at: int | None = None) -> None:
        self._note("mkdir", os.fspath(name), at)
        super().mkdir(name, mode, at=at)

    def link(self, source: str, target: str, *, at: int) -> None:
        self._note("link", target, at)
        super().link(source, target, at=at)

    def replace(self, source: str, target: str, *, at: int) -> None:
        self._note("replace", target, at)
        super().replace(source, target, at=at)

    def unlink(self, name: str, *, at: int) -> None:
        self._note("unlink", name, at)
        super().unlink(name, at=at)


class NoLinks(System):
    """A file system that has no hard links."""

    def link(self, source: str, target: str, *, at: int) -> None:
        raise os_error(errno.EPERM)


class ShortCalls(System):
    """Takes and gives at most `most` bytes a call."""

    def __init__(self, most: int = 7) -> None:
        self._most = most

    def write(self, descriptor: int, data: Buffer) -> int:
        return super().write(descriptor, memoryview(data)[: self._most])

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        return super().pwrite(descriptor, memoryview(data)[: self._most], offset)

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        return super().preadv(descriptor, [parts[0][: self._most]], offset)


class StoppingSystem(System):
    """The process "dies" before call number `at`, counted from 0: from then on nothing happens any more.

    Raises `Stopped`. Counts what changes something; files are closed all the same, as the kernel does
    it for a process that has died.
    """

    def __init__(self, at: int = sys.maxsize) -> None:
        self.calls = 0
        self._at = at
        self._guard = threading.Lock()

    @property
    def stopped(self) -> bool:
        """Whether it has died. A test that does not look may have tested nothing."""
        return self.calls > self._at

    def _step(self) -> None:
        with self._guard:
            if not self.stopped:
                self.calls += 1
            if self.stopped:
                raise Stopped(f"call number {self._at}")

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0, *, at: int | None = None) -> int:
        if flags & os.O_CREAT or self.stopped:
            self._step()
        return super().open(path, flags, mode, at=at)

    def write(self, descriptor: int, data: Buffer) -> int:
        self._step()
        return super().write(descriptor, data)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        self._step()
        return super().pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        self._step()
        super().fsync(descriptor)

    def mkdir(self, name: str | os.PathLike[str], mode: int, *, at: int | None = None) -> None:
        self._step()
        super().mkdir(name, mode, at=at)

    def link(self, source: str, target: str, *, at: int) -> None:
        self._step()
        super().link(source, target, at=at)

    def replace(self, source: str, target: str, *, at: int) -> None:
        self._step()
        super().replace(source, target, at=at)

    def unlink(self, name: str, *, at: int) -> None:
        self._step()
        super().unlink(name, at=at)

    def rmdir(self, name: str, *, at: int) -> None:
        self._step()
        super().rmdir(name, at=at)

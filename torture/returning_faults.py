"""Systems that fail one call by its number, and systems that count, for tests that try every call.

    counting = Troubled()
    run(LocalStore(root, system=counting))
    for number, call in enumerate(counting.made): ...   # Troubled(number, code, ...)

Not promised: that a real disk returns each error at each call. Code must come out right all the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from unbroken.testing.faulty_system import Intercepted, os_error

T = TypeVar("T")

CHANGES = frozenset(
    {"create", "write", "pwrite", "fsync", "close", "fchmod", "mkdir", "link", "replace", "unlink", "rmdir"}
)
"""The calls that change something, or tell whether a change has arrived."""


class TooMany(Exception):
    """More calls than any recovery may take: it would never end."""


class Counted(Intercepted):
    """Calls that come one after the other, so that each has a number."""

    at_once = 1


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

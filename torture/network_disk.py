"""A system that behaves like a disk on a network: calls that are sent twice, names that are seen late, stale handles.

What NFS clients and servers are known to do, injected between the store and a healthy disk:

- a call that changes a name was carried out, its answer got lost, and it was sent again: the second answer,
  `EEXIST` or `ENOENT`, is what the caller gets;
- a file that was replaced on the server is `ESTALE` for who opens it by what he remembers;
- a directory is listed as it was a while ago;
- a file that is removed while it is open lives on as `.nfs…`, so that its directory cannot be removed;
- what could not be written is reported by `close`.

Not promised: that this is all that such a disk does. It was not tried on a real mount.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from torture.returning_faults import Counted, TooMany
from unbroken.store.system import System
from unbroken.testing.faulty_system import os_error

T = TypeVar("T")


class Quirk(Enum):
    """What the disk does."""

    SENT_TWICE = "a call is carried out and sent again"
    STALE = "a handle is stale"
    SEEN_LATE = "a directory is listed as it was"
    KEPT_OPEN = "a removed file lives on under another name"
    TOLD_AT_CLOSE = "what was not written is told at close"


ABOUT = {
    Quirk.SENT_TWICE: frozenset({"create", "mkdir", "link", "replace", "unlink", "rmdir"}),
    Quirk.STALE: frozenset({"open", "preadv"}),
    Quirk.SEEN_LATE: frozenset({"scan"}),
    Quirk.KEPT_OPEN: frozenset({"unlink"}),
    Quirk.TOLD_AT_CLOSE: frozenset({"close"}),
}
"""Quirk -> the calls at which it can happen."""
_TWICE = {"create": errno.EEXIST, "mkdir": errno.EEXIST, "link": errno.EEXIST}


class NetworkDisk(Counted):
    """Has one quirk, at call number `at` of those that it is about, counted from 0, or `always`."""

    def __init__(self, quirk: Quirk, at: int = -1, *, always: bool = False, most: int = 50_000) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []
        """The calls that the quirk is about: name and path."""
        self._quirk = quirk
        self._at = at
        self._always = always
        self._most = most
        self._calls = 0
        self._remembered: dict[str, list[os.DirEntry[str]]] = {}

    @property
    def fired(self) -> bool:
        """Whether it has happened."""
        return self._always or 0 <= self._at < len(self.made)

    def unlink(self, name: str, *, at: int) -> None:
        if self._quirk is Quirk.KEPT_OPEN and self._happens("unlink", name):
            hidden = f".nfs{len(self.made):020x}"
            self._count("unlink", name)
            System.replace(self, name, hidden, at=at)
            return
        super().unlink(name, at=at)

    def scan(self, descriptor: int) -> list[os.DirEntry[str]]:
        path = self._path(descriptor)
        happens = self._quirk is Quirk.SEEN_LATE and self._happens("scan", path)
        found = super().scan(descriptor)
        before = self._remembered.get(path, [])
        self._remembered[path] = found
        # Nothing remembered: an empty directory, as it was when it was made.
        return before if happens else found

    def _happens(self, name: str, _path: str) -> bool:
        return name in ABOUT[self._quirk] and (self._always or len(self.made) == self._at)

    def _count(self, name: str, path: str) -> None:
        self._calls += 1
        if self._calls > self._most:
            raise TooMany(f"{name} {path} is call number {self._calls}")
        if name in ABOUT[self._quirk]:
            self.made.append((name, path))

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        happens = self._happens(name, path)
        self._count(name, path)
        if not happens or self._quirk in (Quirk.SEEN_LATE, Quirk.KEPT_OPEN):
            return call()
        if self._quirk is Quirk.STALE:
            raise os_error(errno.ESTALE)
        result = call()
        if self._quirk is Quirk.TOLD_AT_CLOSE:
            raise os_error(errno.EDQUOT)
        if name == "create" and isinstance(result, int):
            os.close(result)
        raise os_error(_TWICE.get(name, errno.ENOENT))

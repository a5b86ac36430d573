"""What was made with some effort and may be asked for again, by many at once.

Invariants: of each key at most the newest version is kept, of all keys at most so many; what several threads ask for at
once is made once. What was raised while it was made is raised to all who waited, and not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The `most` things that were asked for last. For any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[Hashable, T]] = OrderedDict()
        self._making: dict[tuple[Hashable, Hashable], Future[T]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], T], *, version: Hashable = None) -> T:
        """Return what was made of `key` in this version; make it if it was not, or is not kept any more."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] == version:
                self._kept.move_to_end(key)
                return found[1]
            mine: Future[T] = Future()
            making = self._making.setdefault((key, version), mine)
        if making is not mine:
            return making.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._making[key, version]
            mine.set_exception(error)
            raise
        self.keep(key, made, version=version)
        with self._lock:
            del self._making[key, version]
        mine.set_result(made)
        return made

    def peek(self, key: Hashable) -> T | None:
        """Return what is kept of `key`, in whichever version."""
        with self._lock:
            found = self._kept.get(key)
            return None if found is None else found[1]

    def keep(self, key: Hashable, made: T, *, version: Hashable = None) -> None:
        """Keep what was made of `key`; what was not asked for longest makes room."""
        with self._lock:
            self._kept[key] = version, made
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

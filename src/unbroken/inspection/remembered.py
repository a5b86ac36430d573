"""A run's store for looking only: what never changes is kept in memory, and nothing can be written.

Pages ask for the same records again and again, each of them a file or, in a bucket, a request. Most objects of a run never
change once they are there: commit records, epochs, what lies beside a checkpoint, packs. Those are kept, of packs
the ends, which are looked at before each blob, as long as the first epoch of the run, which is never deleted, is still the same one: a run that was deleted and begun anew
under its name has another.

Invariants: whatever is asked of this store, the run is as it was; and memory holds at most `MOST` bytes of all runs, with
their keys and what keeping each takes: so their number is bounded, too.
Not promised: that damage which comes after an object was read is seen at once; what lies beside a checkpoint, and the ends
of packs, are read anew after `SECONDS`. `verify` reads past this.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from unbroken.errors import StoreError
from unbroken.format import layout
from unbroken.inspection.read_only import ReadOnly
from unbroken.repo.repository import Repository
from unbroken.store.base import ByteStore, SupportsLocalPath

MOST = 64 << 20
"""Bytes of memory for objects."""
ENTRY = 400
"""Bytes that keeping one takes beside its key and the object itself."""
LARGEST = 1 << 20
"""A larger object is not kept."""
SHORT = 64 << 10
"""A longer part of a pack is not kept: it is no end of one."""
SECONDS = 60.0
"""So long is kept what may be found damaged: all but commit records and epochs."""
TOGETHER = 16
"""Requests to a bucket at a time."""

FOR_GOOD = (f"{layout.COMMITS}/", f"{layout.EPOCHS}/", f"{layout.BIRTHS}/")
FOR_A_WHILE = (f"{layout.STEPS}/",)


@dataclass(slots=True)
class Memory:
    """What is kept of all runs; for any number of threads."""

    most: int = MOST
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[tuple[bytes, str], tuple[float, bytes]] = field(
        default_factory=OrderedDict[tuple[bytes, str], "tuple[float, bytes]"]
    )
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, run: bytes, key: str) -> bytes | None:
        """Return what is kept of an object of a run, which is named by a digest."""
        with self._lock:
            found = self._kept.get((run, key))
            if found is None:
                return None
            until, data = found
            if until < self.clock():
                del self._kept[run, key]
                self._size -= _weight(key, data)
                return None
            self._kept.move_to_end((run, key))
            return data

    def keep(self, run: bytes, key: str, data: bytes) -> None:
        """Keep an object; what was not asked for longest makes room."""
        if len(data) > LARGEST:
            return
        until = float("inf") if key.startswith(FOR_GOOD) else self.clock() + SECONDS
        with self._lock:
            before = self._kept.pop((run, key), None)
            self._size += _weight(key, data) - (0 if before is None else _weight(key, before[1]))
            self._kept[run, key] = until, data
            while self._size > self.most:
                (_, name), (_, gone) = self._kept.popitem(last=False)
                self._size -= _weight(name, gone)


def remembering(repository: Repository, place: str, memory: Memory) -> Repository:
    """Return the run at `place` for looking only."""
    return Repository.over(Remembered(repository.store, place, memory), repository.job)


def _weight(key: str, data: bytes) -> int:
    return ENTRY + len(key) + len(data)


class Remembered(ReadOnly):
    """The store of one run, read only. `place` is where the run lies."""

    def __init__(self, inner: ByteStore, place: str, memory: Memory) -> None:
        super().__init__(inner)
        self._memory = memory
        # A digest: what is kept of each object has it as a part of its key.
        self._run = hashlib.sha256(
            place.encode("utf-8", "surrogatepass") + b"\0" + self._first_epoch()
        ).digest()

    def _first_epoch(self) -> bytes:
        for key in self._inner.list(layout.EPOCHS)[:1]:
            with suppress(StoreError):
                return self._inner.get(key)
        return b""

    def get(self, key: str) -> bytes:
        """Return the object."""
        if not key.startswith((*FOR_GOOD, *FOR_A_WHILE)):
            return self._inner.get(key)
        found = self._memory.get(self._run, key)
        if found is None:
            found = self._inner.get(key)
            self._memory.keep(self._run, key, found)
        return found

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a part of the object."""
        if length > SHORT or not key.startswith(f"{layout.PACKS}/"):
            return self._inner.get_range(key, offset, length)
        part = f"{key}?{offset}+{length}"
        found = self._memory.get(self._run, part)
        if found is None:
            found = self._inner.get_range(key, offset, length)
            self._memory.keep(self._run, part, found)
        return found

    def get_all(self, keys: Iterable[str]) -> None:
        """Have objects at hand. Of a bucket several are fetched at a time; what cannot be had is left to `get`."""
        if isinstance(self._inner, SupportsLocalPath):
            return
        missing = [key for key in keys if self._memory.get(self._run, key) is None]

        def fetch(key: str) -> None:
            with suppress(StoreError):
                self.get(key)

        if len(missing) > 1:
            with ThreadPoolExecutor(TOGETHER, "unbroken-look") as pool:
                list(pool.map(fetch, missing))

    def size(self, key: str) -> int:
        """Return the object's size in bytes."""
        found = self._memory.get(self._run, key)
        return self._inner.size(key) if found is None else len(found)

    def on_disk(self) -> Path | None:
        """Return the directory of a run on this machine, None of one in a bucket."""
        return self._inner.local_path() if isinstance(self._inner, SupportsLocalPath) else None

"""A store elsewhere whose hints lie on this machine.

A save must not wait for a network before it returns, and what it notes first (`pending.json`) is only of
use to the next start on the same host. So such objects go to a small directory here, and everything else
to the store.

Not promised: that a start on another host sees the hints. No reader depends on any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from unbroken.format.buffers import Content
from unbroken.store import base
from unbroken.store.base import ByteStore, Names, SupportsProbe, check_key
from unbroken.store.local import LocalStore


class HintedStore:
    """`store`, but for the keys `hints`, which lie in `here`."""

    def __init__(self, store: ByteStore, here: LocalStore, hints: Collection[str]) -> None:
        self._store = store
        self._here = here
        self._hints = frozenset(hints)

    def __repr__(self) -> str:
        return repr(self._store)

    def is_local(self, key: str) -> bool:
        """Whether the object of this name lies, or would lie, on this machine."""
        return key in self._hints

    def hint_path(self, name: str) -> Path:
        """Return a path on this machine that belongs to this store alone, whether or not it exists."""
        return self._here.local_path(name)

    def probe(self) -> None:
        """See `SupportsProbe`."""
        if isinstance(self._store, SupportsProbe):
            self._store.probe()

    def get(self, key: str) -> bytes:
        """See `ByteStore`."""
        return self._of(key).get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ByteStore`."""
        return self._of(key).get_range(key, offset, length)

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """See `SupportsReadInto`."""
        return base.read_into(self._of(key), key, offset, parts)

    def size(self, key: str) -> int:
        """See `ByteStore`."""
        return self._of(key).size(key)

    def put(self, key: str, data: Content) -> None:
        """See `ByteStore`."""
        self._of(key).put(key, data)

    def note(self, key: str, data: bytes) -> None:
        """See `SupportsNotes`."""
        base.note(self._of(key), key, data)

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        """See `SupportsPutAll`."""

        def elsewhere() -> Iterator[tuple[str, Content]]:
            for key, data in items:
                if self._of(key) is self._here:
                    self._here.put(key, data)
                else:
                    yield key, data

        base.put_all(self._store, elsewhere())

    def put_if_absent(self, key: str, data: Content) -> bool:
        """See `ByteStore`."""
        return self._of(key).put_if_absent(key, data)

    def say(self, key: str, data: bytes) -> bool:
        """See `SupportsWords`."""
        return base.say(self._of(key), key, data)

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`, sorted: those of the store and the hints."""
        base.check_prefix(prefix)
        return sorted({*self._store.list(prefix), *self._hints_below(prefix)})

    def children(self, prefix: str = "") -> Names:
        """See `SupportsChildren`."""
        base.check_prefix(prefix)
        start = len(prefix) + 1 if prefix else 0
        hints = {key[start:].partition("/")[0] for key in self._hints_below(prefix)}
        return sorted({*base.children(self._store, prefix), *hints})

    def delete(self, key: str) -> None:
        """See `ByteStore`."""
        self._of(key).delete(key)

    def delete_all(self, keys: Iterable[str]) -> None:
        """See `SupportsDeleteAll`."""

        def elsewhere() -> Iterator[str]:
            for key in keys:
                if self._of(key) is self._here:
                    self._here.delete(key)
                else:
                    yield key

        base.delete_all(self._store, elsewhere())

    def _of(self, key: str) -> ByteStore:
        return self._here if check_key(key) in self._hints else self._store

    def _hints_below(self, prefix: str) -> Names:
        return [key for key in self._here.list(prefix) if key in self._hints]

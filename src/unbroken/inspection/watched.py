"""A store that says how much was read, and that stops reading when told so.

What reads a whole run takes minutes, in functions that know nothing of people who wait. They all read through a store, so
the store is where to look on and where to stop them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unbroken.inspection.read_only import ReadOnly
from unbroken.store.base import ByteStore, Names, read_into

PIECE = 4 << 20
"""Bytes that are read at a time: so soon a reader stops."""


class Watched(ReadOnly):
    """Hands on what reads. `told` is called with the bytes of each read, before it; what it raises ends the reader.

    What it raises must be no error of ours: those are taken for damage.
    """

    def __init__(self, inner: ByteStore, told: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._told = told

    def get(self, key: str) -> bytes:
        """Return the object."""
        self._told(0)
        data = self._inner.get(key)
        self._told(len(data))
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a part of the object."""
        self._told(0)
        data = self._inner.get_range(key, offset, length)
        self._told(len(data))
        return data

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts` with the bytes from `offset` on, some at a time."""
        done = 0
        group: list[memoryview] = []
        pieces = [part.cast("B")[at : at + PIECE] for part in parts for at in range(0, part.nbytes, PIECE)]
        for number, piece in enumerate(pieces):
            group.append(piece)
            asked = sum(one.nbytes for one in group)
            if asked < PIECE and number + 1 < len(pieces):
                continue
            self._told(0)
            read = read_into(self._inner, key, offset + done, group)
            self._told(read)
            done += read
            if read < asked:
                break
            group = []
        return done

    def size(self, key: str) -> int:
        """Return the object's size in bytes."""
        self._told(0)
        return self._inner.size(key)

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`."""
        self._told(0)
        return self._inner.list(prefix)

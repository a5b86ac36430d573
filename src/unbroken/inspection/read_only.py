"""A run's store for those who only look: what reads is handed on, what writes is refused."""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.errors import InternalError
from unbroken.format.buffers import Content
from unbroken.store.base import ByteStore, Names, children, read_into, taken


class ReadOnly:
    """Hands on. What looks in another way overrides the reads that it is about."""

    def __init__(self, inner: ByteStore) -> None:
        self._inner = inner

    def get(self, key: str) -> bytes:
        """Return the object."""
        return self._inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a part of the object."""
        return self._inner.get_range(key, offset, length)

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts` with the bytes from `offset` on."""
        return read_into(self._inner, key, offset, parts)

    def size(self, key: str) -> int:
        """Return the object's size in bytes."""
        return self._inner.size(key)

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`."""
        return self._inner.list(prefix)

    def children(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`."""
        return children(self._inner, prefix)

    def taken(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, of objects or not."""
        start = len(prefix) + 1 if prefix else 0
        return [key[start:] for key in taken(self._inner, prefix)]

    def put(self, key: str, data: Content) -> None:
        """Refuse."""
        raise _refused(key)

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Refuse."""
        raise _refused(key)

    def delete(self, key: str) -> None:
        """Refuse."""
        raise _refused(key)


def _refused(key: str) -> InternalError:
    return InternalError(f"{key} was to be written by what only looks.")

"""A store in memory, for tests and for trying things out. Nothing survives the process."""

from __future__ import annotations

import threading

from unbroken.errors import ObjectMissing
from unbroken.format.buffers import Content, pieces
from unbroken.store.base import Names, check_key, check_prefix, check_range


class MemoryStore:
    """Objects in a dict. Safe for several threads."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._guard = threading.Lock()

    def get(self, key: str) -> bytes:
        """Return the object; `ObjectMissing` if there is none."""
        check_key(key)
        with self._guard:
            if key not in self._objects:
                raise ObjectMissing(f"There is no object {key}.", key=key)
            return self._objects[key]

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`."""
        check_range(key, offset, length)
        return self.get(key)[offset : offset + length]

    def size(self, key: str) -> int:
        """Return the object's size in bytes."""
        return len(self.get(key))

    def put(self, key: str, data: Content) -> None:
        """Write the object, in place of one that is there."""
        check_key(key)
        content = b"".join(pieces(data))
        with self._guard:
            self._objects[key] = content

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Write the object if there is none of this name. Return whether it was written."""
        check_key(key)
        content = b"".join(pieces(data))
        with self._guard:
            if key in self._objects:
                return False
            self._objects[key] = content
            return True

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`, sorted."""
        check_prefix(prefix)
        start = f"{prefix}/" if prefix else ""
        with self._guard:
            return sorted(key for key in self._objects if key.startswith(start))

    def delete(self, key: str) -> None:
        """Delete the object. It is no error if there is none."""
        check_key(key)
        with self._guard:
            self._objects.pop(key, None)

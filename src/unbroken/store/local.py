"""A store in a directory.

Simple first version; see `base` for the contract.
"""

from __future__ import annotations

import os
from pathlib import Path

from unbroken.errors import ObjectMissing
from unbroken.store.base import Content, check_key, check_range, pieces


class LocalStore:
    """Objects as files below `root`."""

    def __init__(
        self, root: str | os.PathLike[str], *, file_mode: int = 0o600, dir_mode: int = 0o700
    ) -> None:
        self._root = Path(root)

    def get(self, key: str) -> bytes:
        """Return the object; `ObjectMissing` if there is none."""
        try:
            return (self._root / check_key(key)).read_bytes()
        except FileNotFoundError:
            raise ObjectMissing(f"There is no object {key}.", key=key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`."""
        check_range(key, offset, length)
        return self.get(key)[offset : offset + length]

    def size(self, key: str) -> int:
        """Return the object's size in bytes."""
        return len(self.get(key))

    def put(self, key: str, data: Content) -> None:
        """Write the object, in place of one that is there."""
        path = self._root / check_key(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for piece in pieces(data):
                file.write(piece)

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Write the object if there is none of this name. Return whether it was written."""
        if (self._root / check_key(key)).exists():
            return False
        self.put(key, data)
        return True

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys below `prefix`, sorted."""
        base = self._root / prefix
        return sorted(str(path.relative_to(self._root)) for path in base.rglob("*") if path.is_file())

    def delete(self, key: str) -> None:
        """Delete the object. It is no error if there is none."""
        (self._root / check_key(key)).unlink(missing_ok=True)

    def local_path(self, key: str = "") -> Path:
        """Return the path of an object or prefix, whether or not it exists."""
        return self._root / key

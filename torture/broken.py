"""Stores that are broken on purpose: a bench that does not find what is wrong with them proves nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from torture.recording import Recording
from unbroken.format import layout
from unbroken.format.buffers import Content, pieces
from unbroken.store.local import LocalStore


class NameBeforeSync(Recording):
    """A file gets its name, and is synced after that."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self._late: list[int] = []

    def fsync(self, descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._late.append(os.dup(descriptor))
        else:
            super().fsync(descriptor)

    def link(self, source: str, target: str, *, at: int) -> None:
        super().link(source, target, at=at)
        self._catch_up()

    def replace(self, source: str, target: str, *, at: int) -> None:
        super().replace(source, target, at=at)
        self._catch_up()

    def _catch_up(self) -> None:
        for descriptor in self._late:
            super().fsync(descriptor)
            os.close(descriptor)
        self._late.clear()


class NoFileSync(Recording):
    """Files are never synced."""

    def fsync(self, descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            super().fsync(descriptor)


class NoDirectorySync(Recording):
    """Directories are never synced."""

    def fsync(self, descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            super().fsync(descriptor)


class NoSyncOfNewDirectories(Recording):
    """The names of directories that are new are not synced."""

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir() and any(child.is_dir() for child in path.iterdir()):
            return
        super().fsync(descriptor)


class CommitBeforePack(LocalStore):
    """Packs are written after the record that commits them."""

    _held: list[tuple[str, bytes]]

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        """Hold packs back."""
        gathered = [(key, b"".join(pieces(data))) for key, data in items]
        self._held = [item for item in gathered if item[0].startswith(f"{layout.PACKS}/")]
        super().put_all([item for item in gathered if item not in self._held])

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Let them go once the commit stands."""
        written = super().put_if_absent(key, data)
        if key.startswith(f"{layout.COMMITS}/"):
            super().put_all(self._held)
        return written


SYSTEMS: dict[str, Callable[[Path], Recording]] = {
    "a name before the sync of its file": NameBeforeSync,
    "no sync of files": NoFileSync,
    "no sync of directories": NoDirectorySync,
    "no sync of the names of new directories": NoSyncOfNewDirectories,
}
STORES: dict[str, Callable[..., LocalStore]] = {"a commit before its pack": CommitBeforePack}

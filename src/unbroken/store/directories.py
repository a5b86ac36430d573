"""The directories of a local store: opened name by name, created durably.

Invariant: a directory in which something was published has a durable name itself, and so have all
above it; whoever creates directories makes their names durable before he publishes in them. No symbolic link below the root is followed, so no key leads out of it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from unbroken.store.system import System, set_mode, sync_directory

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = _READ | os.O_NOFOLLOW


class Directories:
    """Opens and creates directories below `root`. Paths are relative, with ``/``; "" is the root."""

    def __init__(self, root: Path, *, mode: int, system: System) -> None:
        self._root = root
        self._mode = mode
        self._system = system
        self._durable: set[str] = set()
        """Directories whose own names this process has made durable."""
        self._root_is_durable = False

    @property
    def vanished(self) -> bool:
        """Whether the root was there for this process and is not any more: a disk that is not mounted now, say."""
        return self._root_is_durable and not self._root.is_dir()

    def open(self, parent: str) -> int:
        """Open the directory `parent`, name by name, so that no link leads out of the root."""
        descriptor = self._system.open(self._root, _READ)
        for name in parent.split("/") if parent else ():
            try:
                below = self._system.open(name, _BELOW, at=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    @contextmanager
    def opened(self, parent: str) -> Generator[int, None, None]:
        """Open the directory `parent` for a `with` block."""
        descriptor = self.open(parent)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def make(self, parent: str) -> int:
        """Open the directory `parent`; create what is missing, durably."""
        unsynced: set[str] = set()
        descriptor = self.create(parent, unsynced)
        try:
            for path in sorted(unsynced):
                self.sync_name(path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def create(self, parent: str, unsynced: set[str]) -> int:
        """Open the directory `parent` and create what is missing.

        Adds to `unsynced` the directories whose names this process has not made durable.
        """
        descriptor = self._make_root()
        path = ""
        for name in parent.split("/") if parent else ():
            path = f"{path}/{name}" if path else name
            # Also if somebody else made it: he may have died before its name was durable.
            if path not in self._durable:
                unsynced.add(path)
            try:
                below = self._create_below(descriptor, name, path, unsynced)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def sync_name(self, path: str) -> None:
        """Make the name of the directory `path` durable."""
        with self.opened(path.rpartition("/")[0]) as above:
            sync_directory(self._system, above)
        self._durable.add(path)

    def _create_below(self, above: int, name: str, path: str, unsynced: set[str]) -> int:
        try:
            return self._system.open(name, _BELOW, at=above)
        except FileNotFoundError:
            unsynced.add(path)  # one that was durable once is gone
        created = False
        with suppress(FileExistsError):
            self._system.mkdir(name, self._mode, at=above)
            created = True
        below = self._system.open(name, _BELOW, at=above)
        try:
            if created:
                set_mode(self._system, below, self._mode)
        except BaseException:
            os.close(below)
            raise
        return below

    def _make_root(self) -> int:
        # Once it is there and durable it is not made again: a root that vanishes under a running
        # process is an error, and not a reason to start an empty one.
        if not self._root_is_durable:
            missing = [path for path in self._root.parents if not path.is_dir()]
            for path in (*reversed(missing), self._root):
                self._make_path(path)
            self._root_is_durable = True
        return self._system.open(self._root, _READ)

    def _make_path(self, path: Path) -> None:
        created = False
        if not path.is_dir():
            with suppress(FileExistsError):
                self._system.mkdir(path, self._mode)
                created = True
        try:
            above = self._system.open(path.parent, _READ)
        except PermissionError:
            if created:
                raise
            return  # it was made for us by somebody who may look there, and its name is his
        try:
            if created:
                below = self._system.open(path, _READ)
                try:
                    set_mode(self._system, below, self._mode)
                finally:
                    os.close(below)
            sync_directory(self._system, above)
        finally:
            os.close(above)

    def prune(self, parent: str) -> None:
        """Remove `parent` and the directories above it, as far as they are empty; never the root."""
        while parent:
            above, _, name = parent.rpartition("/")
            try:
                with self.opened(above) as directory:
                    self._system.rmdir(name, at=directory)
            except OSError:  # not empty, or gone, or kept open: an empty directory harms nobody
                return
            self._durable.discard(parent)
            parent = above

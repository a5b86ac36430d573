"""Several files of a local store that become durable together.

Order, and what it prevents:

1. every content is written under a temporary name while it is produced, and the kernel is told to begin
   with its own part at once: on a file system with a journal one commit then serves all files;
2. every file is synced and closed, and the names of directories that are new are synced, several at a time;
3. only then the names are given, in the order of the files: a crash leaves the first of them, whole;
4. every directory is synced once.

Whatever fails, names that were not given yet are not given, and the temporary files are removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from unbroken.format.buffers import Content
from unbroken.store.directories import Directories
from unbroken.store.publish import Draft, Publisher, Temporary
from unbroken.store.system import System, sync_directory
from unbroken.store.together import run_together

_MOST_OPEN = 64
"""Files that wait for their sync. A larger group is synced in parts: descriptors are few."""
_ATTEMPTS = 5


@dataclass(slots=True)
class _Member:
    key: str
    directory: int
    file: Draft | Temporary | None

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


class Group:
    """Files on their way to their names. Must be closed, however it ends.

    `failures(key)` turns what goes wrong with one object into the store's errors. A group that is not `durable`
    never waits for the disk: its files appear whole or not at all, and a power loss may take them.
    """

    def __init__(
        self,
        directories: Directories,
        publisher: Publisher,
        *,
        system: System,
        failures: Callable[[str], AbstractContextManager[None]],
        durable: bool = True,
    ) -> None:
        self._durable = durable
        self._directories = directories
        self._publisher = publisher
        self._system = system
        self._failures = failures
        self._members: list[_Member] = []
        self._opened: dict[str, int] = {}
        self._descriptors: list[int] = []
        self._unsynced: dict[str, str] = {}
        """Directories whose names are not durable yet, with the object that needed them first."""
        self._drafts = 0

    def write(self, key: str, data: Content) -> None:
        """Write the content of one more object."""
        if self._drafts == _MOST_OPEN:
            self._settle()
        with self._failures(key):
            directory, draft = self._begin(key)
            self._publisher.fill(draft, data, directory=directory)
            if self._durable:
                self._publisher.start_flush(draft, directory=directory)
        self._members.append(_Member(key, directory, draft))
        self._drafts += 1

    def replace(self) -> None:
        """Give all files their names, in place of others that bear them."""
        self._make_durable()
        for member in self._members:
            with self._failures(member.key):
                self._publisher.replace(_settled(member), member.name, directory=member.directory)
                member.file = None
        self._sync_directories()

    def create(self) -> bool:
        """Give the only file its name if no other bears it; return whether it does now."""
        self._make_durable()
        (member,) = self._members
        with self._failures(member.key):
            temporary = _settled(member)
            created = self._publisher.create(temporary, member.name, directory=member.directory)
            self._publisher.discard(temporary.name, directory=member.directory)
            member.file = None
        # Also when the name was taken: it may be our own earlier try, whose sync has failed.
        self._sync_directories()
        return created

    def close(self) -> None:
        """Remove the files that have got no name."""
        for member in self._members:
            if isinstance(member.file, Draft):
                self._publisher.drop(member.file, directory=member.directory)
            elif isinstance(member.file, Temporary):
                self._publisher.discard(member.file.name, directory=member.directory)
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _begin(self, key: str, *, attempts: int = _ATTEMPTS) -> tuple[int, Draft]:
        """Return the open directory, and an empty temporary file in it."""
        parent = key.rpartition("/")[0]
        try:
            if parent not in self._opened:
                unsynced: set[str] = set()
                self._opened[parent] = self._directories.create(parent, unsynced)
                self._descriptors.append(self._opened[parent])
                self._unsynced = dict.fromkeys(unsynced, key) | self._unsynced
            return self._opened[parent], self._publisher.begin(self._opened[parent])
        except FileNotFoundError:
            # Another process has just deleted the last object here, and with it the directory.
            if attempts == 1:
                raise
        self._opened.pop(parent, None)
        return self._begin(key, attempts=attempts - 1)

    def _make_durable(self) -> None:
        names = self._unsynced.items() if self._durable else ()
        self._settle([partial(self._sync_name, path, key) for path, key in names])

    def _settle(self, others: Sequence[Callable[[], None]] = ()) -> None:
        drafts = [member for member in self._members if isinstance(member.file, Draft)]
        run_together(
            [*(partial(self._sync, member) for member in drafts), *others], most=self._system.at_once
        )
        self._drafts = 0

    def _sync(self, member: _Member) -> None:
        draft, member.file = member.file, None
        assert isinstance(draft, Draft)
        with self._failures(member.key):
            member.file = self._publisher.settle(draft, directory=member.directory, durable=self._durable)

    def _sync_name(self, path: str, key: str) -> None:
        with self._failures(key):
            self._directories.sync_name(path)

    def _sync_directories(self) -> None:
        if not self._durable:
            return
        last = {member.directory: member.key for member in self._members}
        run_together(
            [partial(self._sync_directory, directory, key) for directory, key in last.items()],
            most=self._system.at_once,
        )

    def _sync_directory(self, directory: int, key: str) -> None:
        with self._failures(key):
            sync_directory(self._system, directory)


def _settled(member: _Member) -> Temporary:
    assert isinstance(member.file, Temporary)
    return member.file

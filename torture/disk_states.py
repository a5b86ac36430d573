"""The disks that a crash can leave behind, made from what was recorded of a run (`recording`).

What POSIX promises is taken at its word, and nothing more: until a file is synced, any part of what was
written into it may be on the disk, in any order, or its length without its bytes; until a directory is
synced, any of its changes may be there without the others. Only a single rename, link or removal is atomic.

For each moment of the run (between any two operations) these disks are made:

- *prefix*: all that was done is there, in order; and nothing but what barriers had settled;
- *torn*: of a write that nothing had settled only a part is there: cut at several lengths, zeros in the
  place of its blocks, every second block;
- *reordered*: of what was not settled each one is missing, each one alone is there, and some are drawn.

Pure: the same events and seed give the same disks. Not promised: that file systems are as bad as this, or that
these are all the disks that POSIX permits; of what is drawn there are more.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torture.recording import BASE, Change, Event, Mark, Named, Renamed, Synced, Unnamed, Wrote
from unbroken.format.digest import digest_of

BLOCK = 512
"""What a disk writes at once, in bytes."""
DRAWN = 3
"""Subsets of the unsettled changes that are drawn for each moment."""
LOOKED_AT = 8
"""So many of the newest unsettled changes are left out, or applied alone, one by one."""

Way: TypeAlias = Literal["prefix", "torn", "reordered"]
Tree: TypeAlias = dict[str, "bytes | None"]
"""Paths below the base; None for a directory."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """One disk after a crash, and what had been promised by then."""

    way: Way
    at: int
    """Events that had happened."""
    detail: str
    tree: Tree
    marks: tuple[object, ...]

    @property
    def digest(self) -> str:
        """The same for the same disk with the same promises."""
        names = [
            (path, "" if data is None else digest_of(data), data is None)
            for path, data in sorted(self.tree.items())
        ]
        return digest_of(repr((names, len(self.marks))).encode())


@dataclass(slots=True)
class _Disk:
    """What is settled, and what is not, at one moment."""

    entries: dict[int, dict[str, int]] = field(default_factory=lambda: {BASE: {}})
    contents: dict[int, bytes] = field(default_factory=dict[int, bytes])
    directories: set[int] = field(default_factory=lambda: {BASE})
    waiting: list[Change] = field(default_factory=list[Change])
    marks: list[object] = field(default_factory=list[object])

    def happen(self, event: Event) -> None:
        """Take note of one event."""
        if isinstance(event, Mark):
            self.marks.append(event.what)
        elif isinstance(event, Synced):
            self._settle(event.inode)
        else:
            if isinstance(event, Named) and event.is_directory:
                self.directories.add(event.inode)
            self.waiting.append(event)

    def arrive(self, event: Event) -> None:
        """Take note that a write which waits for the disk has returned."""
        if isinstance(event, Wrote) and event.settled:
            self._settle(event.inode)

    def tree(self, applied: Iterable[Change]) -> Tree:
        """Return the disk on which of what is unsettled these have arrived, in this order."""
        entries, contents = dict(self.entries), dict(self.contents)
        owned: set[int] = set()
        for change in applied:
            if isinstance(change, Wrote):
                contents[change.inode] = _written(contents.get(change.inode, b""), change)
            else:
                if change.directory not in owned:
                    owned.add(change.directory)
                    entries[change.directory] = dict(entries.get(change.directory, {}))
                _renamed(entries[change.directory], change, self._bearer(change))
        found: Tree = {}
        self._look(BASE, "", entries, contents, found)
        return found

    def _settle(self, inode: int) -> None:
        left: list[Change] = []
        for change in self.waiting:
            if isinstance(change, Wrote):
                if change.inode == inode:
                    self.contents[inode] = _written(self.contents.get(inode, b""), change)
                    continue
            elif change.directory == inode:
                _renamed(self.entries.setdefault(inode, {}), change, self._bearer(change))
                continue
            left.append(change)
        self.waiting = left

    def _bearer(self, change: Change) -> int | None:
        """Return what a rename moves: on the disk the source may not have arrived yet."""
        if not isinstance(change, Renamed):
            return None
        inode = self.entries.get(change.directory, {}).get(change.source)
        for other in self.waiting:
            if other is change:
                break
            if isinstance(other, Named) and (other.directory, other.name) == (
                change.directory,
                change.source,
            ):
                inode = other.inode
        return inode

    def _look(
        self,
        inode: int,
        path: str,
        entries: Mapping[int, Mapping[str, int]],
        contents: Mapping[int, bytes],
        found: Tree,
    ) -> None:
        for name, below in entries.get(inode, {}).items():
            where = f"{path}/{name}" if path else name
            if below in self.directories:
                found[where] = None
                self._look(below, where, entries, contents, found)
            else:
                found[where] = contents.get(below, b"")


def disk_states(events: Collection[Event], *, seed: int = 0, drawn: int = DRAWN) -> Iterator[DiskState]:
    """Yield the disks, moment by moment. The same disk can come several times; see `DiskState.digest`."""
    disk = _Disk()
    for at, event in enumerate(events, 1):
        disk.happen(event)
        for way, detail, applied in _choices(disk.waiting, random.Random(f"{seed} {at}"), drawn):
            yield DiskState(way, at, detail, disk.tree(applied), tuple(disk.marks))
        disk.arrive(event)


def _choices(
    waiting: list[Change], draw: random.Random, drawn: int
) -> Iterator[tuple[Way, str, list[Change]]]:
    yield "prefix", "all", waiting
    if not waiting:
        return
    yield "prefix", "settled only", []
    for number in range(max(0, len(waiting) - LOOKED_AT), len(waiting)):
        rest = waiting[:number] + waiting[number + 1 :]
        yield "reordered", f"without {_said(waiting[number])}", rest
        yield "reordered", f"only {_said(waiting[number])}", [waiting[number]]
        yield "reordered", f"up to {_said(waiting[number])}", waiting[:number]
        change = waiting[number]
        if isinstance(change, Wrote):
            for detail, parts in _torn(change):
                yield (
                    "torn",
                    f"{detail} of {_said(change)}",
                    [*waiting[:number], *parts, *waiting[number + 1 :]],
                )
    for number in range(drawn if len(waiting) > 2 else 0):
        chosen = [change for change in waiting if draw.random() < 0.5]
        yield "reordered", f"draw {number}", chosen


def _torn(write: Wrote) -> Iterator[tuple[str, list[Wrote]]]:
    size = len(write.data)
    cuts = {1, size // 2, size - 1, *range(BLOCK, size, max(BLOCK, size // 4 // BLOCK * BLOCK))}
    for cut in sorted(cut for cut in cuts if 0 < cut < size):
        yield f"{cut} bytes", [Wrote(write.inode, write.offset, write.data[:cut])]
    half = write.data[: size // 2].ljust(size, b"\0")
    yield "half and zeros", [Wrote(write.inode, write.offset, half)]
    yield "zeros", [Wrote(write.inode, write.offset, bytes(size))]
    if size > BLOCK:
        for first in (0, 1):
            blocks = range(first * BLOCK, size, 2 * BLOCK)
            parts = [Wrote(write.inode, write.offset + at, write.data[at : at + BLOCK]) for at in blocks]
            yield f"every second block from {first}", parts


def _written(content: bytes, write: Wrote) -> bytes:
    return (
        content[: write.offset].ljust(write.offset, b"\0")
        + write.data
        + content[write.offset + len(write.data) :]
    )


def _renamed(names: dict[str, int], change: Named | Renamed | Unnamed, bearer: int | None) -> None:
    if isinstance(change, Named):
        names[change.name] = change.inode
    elif isinstance(change, Unnamed):
        names.pop(change.name, None)
    else:
        names.pop(change.source, None)
        if bearer is not None:
            names[change.target] = bearer


def _said(change: Change) -> str:
    if isinstance(change, Wrote):
        return f"{len(change.data)} bytes at {change.offset} into file {change.inode}"
    if isinstance(change, Named):
        return f"the name {change.name}"
    if isinstance(change, Renamed):
        return f"the rename to {change.target}"
    return f"the removal of {change.name}"

"""What the control groups of this process leave it of memory; both versions of them, at every level.

A process is in a group by a path (`/proc/self/cgroup`) below where that hierarchy is mounted
(`/proc/self/mountinfo`); every group on the way up has a limit of its own, and the tightest holds. In a container
the path may be that of the host, of which only the lower end is mounted, or nothing of it: then the mount itself
is the group.

Files that were read count as used, although the kernel gives them back when memory is short: what it calls
inactive files is therefore taken for free. Source: the kernel's documentation, cgroup-v2.rst and
cgroup-v1/memory.rst; Kubernetes calls the same figure the working set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A tree of control groups, and the names of its files."""

    filesystem: str
    limit: str
    used: str
    inactive: str
    """The entry of `memory.stat`."""


_SECOND = Hierarchy("cgroup2", "memory.max", "memory.current", "inactive_file")
_FIRST = Hierarchy("cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def left_in_groups(proc: Path) -> int | None:
    """Return the bytes that the tightest group leaves; None where no group says a limit.

    Of the first version each group says one: where none is set that is a number beyond any machine's memory, and so is
    what this returns. Who asks takes the least of it and of what the machine has.
    """
    left = [n for group, names in _groups(proc / "self") if (n := _left(group, names)) is not None]
    return min(left, default=None)


def _groups(process: Path) -> Iterator[tuple[Path, Hierarchy]]:
    """Yield each group that the process is in, from its own up to the one that is mounted."""
    member = [found for line in _lines(process / "cgroup") if (found := _membership(line))]
    mounts = [mount for line in _lines(process / "mountinfo") if (mount := _mounted(line))]
    for names, path in member:
        for hierarchy, root, point in mounts:
            if hierarchy is names:
                yield point, names
                group = point
                for part in _below(path, root):
                    group /= part
                    yield group, names


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel's: other people's mounts and names may be of any bytes."""
    try:
        return os.fsdecode(path.read_bytes()).split("\n")
    except OSError:
        return []


def _membership(line: str) -> tuple[Hierarchy, str] | None:
    """Return the hierarchy and the path of a line `ID:CONTROLLERS:PATH`, if it has to do with memory."""
    number, controllers, path = [*line.split(":", 2), "", ""][:3]
    if number == "0":
        return _SECOND, path
    return (_FIRST, path) if "memory" in controllers.split(",") else None


def _mounted(line: str) -> tuple[Hierarchy, str, Path] | None:
    """Return the hierarchy that a line of mountinfo mounts, from what root of it, and where; None if it is another's."""
    before, _, after = line.partition(" - ")
    fields, behind = before.split(" "), after.split(" ")  # a mount may have no name: two spaces stand there
    if len(fields) < 5 or len(behind) < 3:
        return None
    kind, options = behind[0], behind[2].split(",")
    names = _SECOND if kind == _SECOND.filesystem else _FIRST
    if kind != names.filesystem or (names is _FIRST and "memory" not in options):
        return None
    root, point = (_unescaped(field) for field in fields[3:5])
    return names, root, Path(point)


def _below(path: str, root: str) -> tuple[str, ...]:
    """Return the way from what is mounted to the group; none where the group is not below it."""
    own = PurePosixPath(path)
    if ".." in own.parts or not own.is_relative_to(root):
        return ()
    return own.relative_to(root).parts


def _left(group: Path, names: Hierarchy) -> int | None:
    try:
        limit = (group / names.limit).read_text().strip()
        used = int((group / names.used).read_text())
        stat = (group / "memory.stat").read_text().splitlines()
        if limit == "max":
            return None
        entries = dict(line.split() for line in stat)
        return max(0, int(limit) - used + int(entries.get(names.inactive, 0)))
    except (OSError, ValueError):
        # The uppermost group of the second version has no such files, and a sandbox may write them in its own way.
        return None


def _unescaped(field: str) -> str:
    r"""Return a path as it is: mountinfo writes a space as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)

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
    """Return the bytes that the tightest group leaves; None where no group has a limit."""
    try:
        left = [n for group, names in _groups(proc / "self") if (n := _left(group, names)) is not None]
    except ValueError:  # a sandbox that imitates Linux may write these files in a way of its own
        return None
    return min(left, default=None)


def _groups(process: Path) -> Iterator[tuple[Path, Hierarchy]]:
    """Yield each group that the process is in, from its own up to the one that is mounted."""
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        member = (process / "cgroup").read_text().splitlines()
    except OSError:
        return
    paths = {names: path for line in member if (found := _membership(line)) for names, path in [found]}
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = (_unescaped(field) for field in before.split()[3:5])
        kind, _, options = after.split(maxsplit=2)
        for names, path in paths.items():
            if kind == names.filesystem and (names is _SECOND or "memory" in options.split(",")):
                group = Path(point)
                yield group, names
                for part in _below(path, root):
                    group /= part
                    yield group, names


def _membership(line: str) -> tuple[Hierarchy, str] | None:
    """Return the hierarchy and the path of a line `ID:CONTROLLERS:PATH`, if it has to do with memory."""
    number, controllers, path = line.split(":", 2)
    if number == "0":
        return _SECOND, path
    return (_FIRST, path) if "memory" in controllers.split(",") else None


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
    except OSError:  # the uppermost group of the second version has no such files
        return None
    if limit == "max":
        return None
    entries = dict(line.split() for line in stat)
    # The first version has no word for "none": it gives a number that no machine has, which never is the least.
    return max(0, int(limit) - used + int(entries.get(names.inactive, 0)))


def _unescaped(field: str) -> str:
    r"""Return a path as it is: mountinfo writes a space as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)

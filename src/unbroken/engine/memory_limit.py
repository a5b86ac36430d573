"""How much memory staging may take, where nobody says it: half of what is free.

Asked for when more is needed, and not before, since training takes its own first. A container's limit
counts as well as the machine's.

Not promised: that the other half stays free.
"""

from __future__ import annotations

from pathlib import Path

SHARE = 0.5
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 2 << 30
"""Where the system does not tell, as on macOS."""


def free_share(*, memory: Path = _MEMORY, group: Path = _GROUP) -> int:
    """Return the bytes that staging may take now."""
    free = [n for n in (_available(memory), _left_in_group(group)) if n is not None]
    return int(min(free) * SHARE) if free else _UNKNOWN


def _available(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _left_in_group(group: Path) -> int | None:
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))

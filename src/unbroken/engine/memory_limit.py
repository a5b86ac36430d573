"""How much memory staging may take, where nobody says it: half of what is free.

Asked for when more is needed, and not before, since training takes its own first. The limits of the control
groups that the process is in count as well as the machine's memory: those of a container, of a SLURM job, of a
systemd unit; so does that of `ulimit -v`.

Not promised: that the other half stays free.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

from unbroken.engine.memory_groups import left_in_groups

SHARE = 0.5
_PROC = Path("/proc")
_UNKNOWN = 2 << 30
"""Where the system does not tell, as on macOS."""


def free_share(*, proc: Path = _PROC) -> int:
    """Return the bytes that staging may take now; `proc` is where the system tells."""
    free = [n for n in (_available(proc), left_in_groups(proc), _left_to_map(proc)) if n is not None]
    return int(min(free) * SHARE) if free else _UNKNOWN


def _available(proc: Path) -> int | None:
    return _kibibytes(proc / "meminfo", "MemAvailable:")


def _left_to_map(proc: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    mapped = _kibibytes(proc / "self" / "status", "VmSize:")
    return None if limit == resource.RLIM_INFINITY or mapped is None else max(0, limit - mapped)


def _kibibytes(path: Path, name: str) -> int | None:
    """Return the bytes in the line of this name, which the kernel gives in KiB; None where it is not told."""
    try:
        told = path.read_bytes()  # the same file holds the process's name, cut in the middle of a letter
    except OSError:
        return None
    found = re.search(rb"^%s\s+(\d+) kB$" % name.encode(), told, re.MULTILINE)
    return int(found[1]) * 1024 if found else None

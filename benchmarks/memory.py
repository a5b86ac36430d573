"""The memory of this process, as the kernel counts it, and an allocator that does not flatter.

Two traps are as large as the differences between libraries. Recycled memory: glibc keeps freed blocks,
so that what one row has touched makes the next one too fast; `ALLOCATOR` fixes the threshold from which
every block is mapped anew and given back. Idle memory: fresh memory costs several times more after some
seconds of idleness; that is why saves are measured back to back and after a pause.
"""

from __future__ import annotations

from pathlib import Path

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
"""Environment of every measuring process."""


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return _status("VmRSS")


def reset_peak() -> None:
    """Let `peak` begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak() -> int:
    """Return the most bytes that were in memory since `reset_peak`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")

"""Fills a disk of some megabytes, as others do who write to the same one."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 4096


def fill(disk: Path, *, but: int = 0) -> Path:
    """Let others take what the disk has left, but for so many bytes; return where their bytes lie."""
    filler = disk / f"of somebody else {len(list(disk.iterdir()))}"
    with filler.open("wb") as file:
        taken = free(disk) - but
        if taken > 0:
            os.posix_fallocate(file.fileno(), 0, taken)
    assert free(disk) == but // BLOCK * BLOCK
    return filler


def give_back(filler: Path, size: int) -> None:
    """Let others free at least so many bytes of what they have taken."""
    left = max(0, filler.stat().st_size - size) // BLOCK * BLOCK
    os.truncate(filler, left)


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize

"""Disks in memory (`/dev/shm`, where there is such a thing), laid out and torn down by the thousand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from torture.disk_states import Tree

_SHARED = Path("/dev/shm")


@contextmanager
def room() -> Generator[Path, None, None]:
    """Give an empty directory, in memory if possible, that is gone afterwards."""
    where = _SHARED if os.access(_SHARED, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="torture-of-disks-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def laid_out(tree: Tree, where: Path) -> None:
    """Make the disk below `where`, which becomes empty first."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(mode=0o700)
    for path in sorted(path for path, data in tree.items() if data is None):
        (where / path).mkdir(mode=0o700)
    for path, data in tree.items():
        if data is not None:
            (where / path).write_bytes(data)


def taken(where: Path) -> Tree:
    """Return the disk below `where`."""
    found: Tree = {}
    for path in sorted(where.rglob("*")):
        found[str(path.relative_to(where))] = None if path.is_dir() else path.read_bytes()
    return found

"""Reading of a run that is in training: what is missing is looked for anew before it is called damaged.

A compaction moves blobs from one pack to another, and a checkpoint that is kept no longer goes, both at any moment.
Something is missing only where no pack has come or gone since they were looked at, and the commit still counts
(`log.is_gone`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from unbroken.errors import CorruptObject
from unbroken.repo.blobs import BlobIndex

T = TypeVar("T")

ATTEMPTS = 10
"""So often something else is found in the place of what the run has just deleted or moved."""


def settled(index: BlobIndex, read: Callable[[], T]) -> T:
    """Return what `read` returns; it is called again where it misses something and packs have come or gone.

    Raises:
        CorruptObject: something is damaged or missing, and no pack has come or gone since.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return read()
        except CorruptObject:
            if not packs_changed(index):
                raise
    return read()


def packs_changed(index: BlobIndex) -> bool:
    """Look at the packs again, and return whether some have come or gone since the last time."""
    before = set(index.packs)
    index.refresh()
    return index.packs.keys() != before

"""Pointer files: what a framework stores, copies and deletes in place of a checkpoint of ours.

Not promised: that a pointer leads anywhere. What it names is kept and deleted by the run's own rules.
"""

from __future__ import annotations

import os
from pathlib import Path

from unbroken.format.pointer import FILE, Pointer
from unbroken.format.records import Commit
from unbroken.repo.seal import seal, unseal


def write(
    directory: str | os.PathLike[str], commit: Commit, *, root: str, job: str, world_size: int = 1
) -> None:
    """Write a pointer to a durable commit into a directory, which whoever stores it makes durable."""
    pointer = Pointer(
        root=root,
        job=job,
        sequence=commit.sequence,
        digest=commit.manifest_digest,
        step=commit.step,
        world_size=world_size,
        directory=commit.directory,
    )
    (Path(directory) / FILE).write_bytes(seal(pointer))


def read(directory: str | os.PathLike[str]) -> Pointer | None:
    """Return the pointer in a directory, None if there is none.

    Raises:
        CorruptObject: it is damaged.
    """
    try:
        data = (Path(directory) / FILE).read_bytes()
    except FileNotFoundError:
        return None
    return unseal(data, Pointer, key=FILE)

"""Pointer files: what a framework stores, copies and deletes in place of a checkpoint of ours.

Not promised: that a pointer leads anywhere. What it names is kept and deleted by the run's own rules.
"""

from __future__ import annotations

import os
from pathlib import Path

from unbroken.errors import ConfigError, CorruptObject, StoreDenied
from unbroken.format.pointer import FILE, Pointer
from unbroken.format.records import Commit
from unbroken.repo.seal import seal, unseal

_HINT = (
    "The run itself is none the worse: give the framework another of its checkpoints, or start without one. "
    "What the run holds is shown by `unbroken ls`, told the root of the run."
)


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
        CorruptObject: it is damaged, or something else than a file.
        StoreDenied: it may not be read.
        UnsupportedFormat: it was written by a newer version.
    """
    path = Path(directory) / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise StoreDenied(f"{path} cannot be read: {error.strerror}.", key=FILE) from error
    except IsADirectoryError as error:
        raise CorruptObject(f"{path} is a directory, not a pointer.", hint=_HINT, key=FILE) from error
    try:
        return unseal(data, Pointer, key=FILE)
    except CorruptObject as error:
        # Not the usual advice: who verifies a run sees none of its pointers.
        problem = f"{path} is damaged, so it cannot be told which checkpoint it means: {error.message}"
        raise CorruptObject(problem, hint=_HINT, key=FILE, digest=error.digest) from error


def required(directory: str | os.PathLike[str], *, framework: str, hint: str) -> Pointer:
    """Return the pointer in a directory that a framework gives back as a checkpoint.

    Raises:
        ConfigError: there is none: the checkpoint was written by something else.
        CorruptObject, StoreDenied, UnsupportedFormat: as `read` does.
    """
    found = read(directory)
    if found is None:
        raise ConfigError(
            f"{directory} holds no {FILE}, so {framework}'s checkpoint is none of this package's.", hint=hint
        )
    return found

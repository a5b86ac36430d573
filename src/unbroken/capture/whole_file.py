"""A file of another library that a restore writes: it is there whole, or as it was before."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from unbroken.errors import RestoreFailed


def write_whole(path: str, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside `path` and give it that name: a kill must not leave half a file there.

    Raises:
        OSError: it cannot be written. Nothing is left beside it.
    """
    aside = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(aside, "wb") as file:
            fill(file)
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.remove(aside)
        raise


def cannot_be_written(what: str, error: OSError) -> RestoreFailed:
    """Return what ends a restore that could not write a file. `what` is what it is, and where."""
    return RestoreFailed(
        f"{what} cannot be written: {error.strerror}.",
        hint="Make room or make it writable, and start again; the checkpoint still has its content.",
    )

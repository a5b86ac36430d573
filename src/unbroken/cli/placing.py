"""Where an export puts its file: seen in time, and replaced whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unbroken.errors import ConfigError

T = TypeVar("T")


def check_file(path: Path, *, force: bool) -> None:
    """Say in time whether a file can be written here.

    Raises:
        ConfigError: it cannot.
    """
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"The folder {path.parent} does not exist.", hint="Make it first.")
    if not os.path.lexists(path):
        return
    # Renaming over a pipe, a device or a link would put a file in its place, and lose where it led.
    if path.is_symlink() or not path.is_file():
        what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"
        raise ConfigError(f"{path} is {what}, and is not replaced.", hint="Name a file.")
    if not force:
        raise ConfigError(f"{path} exists.", hint="Add --force to replace it.")


def replace_file(path: Path, write: Callable[[Path], T]) -> T:
    """Write beside `path` and rename, so that an interrupted export leaves no half file.

    Raises:
        ConfigError: the system does not let it be written.
    """
    # A name of full length has no room for more letters.
    beside = path.with_name(f".{path.stem[:40]}-{secrets.token_hex(4)}{path.suffix}")
    try:
        written = write(beside)
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Make room, or name another place."
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    return written

"""Where a command puts the one file that it makes: a file, a pipe, or the standard output.

Invariants: a file that exists is replaced only if that was said, and whole or not at all; a link stays a link, to what it
names; a pipe or a terminal is written into and stays what it is. An error names the file that was asked for.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

from unbroken.errors import ConfigError

OUTPUT = "-"
"""As a file's name: the standard output."""


def check(path: Path, *, force: bool) -> None:
    """See whether a file can be put there, before the work that makes it.

    Raises:
        ConfigError: it exists, unless `force` is given; it is a directory or a device; there is no directory for it.
    """
    if str(path) == OUTPUT or is_stream(path):
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a directory.", hint=f"Name a file: -o {path / 'report.html'}")
    if not path.parent.is_dir():
        if path.parent.exists():
            raise ConfigError(
                f"{path.parent} is a file, not a directory.", hint="Name another place with -o."
            )
        raise ConfigError(
            f"There is no directory {path.parent}.", hint="Make it, or name another file with -o."
        )
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file that could be replaced.", hint="Name another one with -o.")
    if os.path.lexists(path) and not force:
        raise ConfigError(
            f"{path} exists.",
            hint="Add --force to replace it, or name another file with -o: runs of one name have one default.",
        )


def put(path: Path, data: bytes) -> None:
    """Write the file.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    try:
        if str(path) == OUTPUT:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
        else:
            _replace(path.resolve(), data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error


def is_stream(path: Path) -> bool:
    """Return whether it is a pipe or a terminal, or the like: there is nothing in it to be replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _replace(path: Path, data: bytes) -> None:
    # A name of its own: beside one that is as long as names may be there is no room for more letters.
    beside = path.with_name(f".unbroken-{secrets.token_hex(8)}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)

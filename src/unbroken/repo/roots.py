"""What a person gives as the place of runs, as the path of a directory.

Two checks: of the words, which touches no file, and of what stands there.

Not promised: that one can write there; the store finds that out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from unbroken.errors import ConfigError

LONGEST = 255
"""Bytes in one part of a path, on every file system in use."""


def directory_of(root: object, *, name: str = "root") -> Path:
    """Return the absolute path that `root` means, `~` resolved. `name` is what the caller calls it.

    Raises:
        ConfigError: it can be no directory's.
    """
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root):
        raise ConfigError(
            f"{name} must be a directory, not {root!r}.", hint=f'For example {name}="runs/dqn".'
        )
    text: object = os.fspath(cast("str | os.PathLike[str]", root))
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"{name} must be a path in characters, not {text!r}.", hint="Give a directory.")
    if "://" in text:
        raise ConfigError(
            f"{name}={text!r} is no directory: object stores are not supported yet.",
            hint="Give a directory, on a network file system if need be.",
        )
    try:
        path = Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError:
        raise ConfigError(
            f"{name}={text!r} names the home of a user who is not known here.", hint="Write the path out."
        ) from None
    longest = max(path.parts, key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(longest)) > LONGEST:
        raise ConfigError(
            f"{name} has a part of {len(os.fsencode(longest))} bytes, {longest[:20]!r}…; the most is {LONGEST}.",
            hint="Give a shorter name.",
        )
    return path


def check_directory(path: Path) -> Path:
    """Return `path` if a directory stands there, or nothing yet.

    Raises:
        ConfigError: something else does, or that cannot be found out.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror}.", hint="Choose another directory."
        ) from error
    if not path.is_dir():
        raise ConfigError(f"{path} is a file, not a directory.", hint="Choose another directory.")
    return path

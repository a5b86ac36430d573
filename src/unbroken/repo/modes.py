"""Who may read and write the files of a run, whatever the umask says.

By default its owner alone: 0600 and 0700. `UNBROKEN_GROUP=read` lets the group of the directory look
(0640, 0750), `UNBROKEN_GROUP=write` lets it train and delete as well (0660, 0770). It holds for what is made
from then on; with the set-group-id bit on the root, new directories belong to the root's group.

Not promised: access lists, and files of frameworks beside the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import ConfigError
from unbroken.store.system import System, set_mode

VARIABLE = "UNBROKEN_GROUP"


@dataclass(frozen=True, slots=True)
class Modes:
    """The permissions of files and of directories."""

    file: int = 0o600
    directory: int = 0o700


_MODES = {"": Modes(), "read": Modes(0o640, 0o750), "write": Modes(0o660, 0o770)}


def modes(environ: Mapping[str, str] = os.environ) -> Modes:
    """Return the permissions that this user wants.

    Raises:
        ConfigError: the variable says something else.
    """
    word = environ.get(VARIABLE, "")
    if word not in _MODES:
        raise ConfigError(
            f"{VARIABLE}={word!r} is neither read nor write.", hint="Unset it, for the owner alone."
        )
    return _MODES[word]


def make_directories(path: Path, mode: int) -> None:
    """Make a directory and those above it that are missing, each with this mode."""
    for missing in (*reversed([above for above in path.parents if not above.is_dir()]), path):
        with suppress(FileExistsError):
            os.mkdir(missing, mode)
            descriptor = os.open(missing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                set_mode(System(), descriptor, mode)
            finally:
                os.close(descriptor)

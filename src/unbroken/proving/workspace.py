"""The directory in which a proof happens: two roots, the script's output, its progress.

Both runs see their root under one path, and the finished one is moved aside: else the path itself would
be a difference between them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unbroken.engine.progress import VARIABLE as PROGRESS
from unbroken.errors import ConfigError

TAIL_LINES = 12
TAIL_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths below `directory`; nothing outside it is written."""

    directory: Path

    @property
    def root(self) -> Path:
        """The root of the run that is going on."""
        return self.directory / "root"

    @property
    def undisturbed(self) -> Path:
        return self.directory / "undisturbed"

    @property
    def killed(self) -> Path:
        return self.directory / "killed"

    def prepare(self) -> None:
        """Create what is needed.

        Raises:
            ConfigError: the directory is a file, or holds something already.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if any(self.directory.iterdir()):
                raise ConfigError(
                    f"{self.directory} is not empty.", hint="Give a new directory: a proof never overwrites."
                )
            for path in (self.root, self.directory / "output", self.directory / "progress"):
                path.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"{self.directory} cannot be used: {error.strerror}.", hint="Choose another directory."
            ) from error

    def move_root(self, to: Path) -> None:
        """Move the root of the run that is over aside, and make a fresh one."""
        self.root.rename(to)
        self.root.mkdir(mode=0o700)

    def tidy(self) -> None:
        """Move what an unfinished run has left to where it would have gone; drop an empty root."""
        if any(self.root.iterdir()):
            self.root.rename(self.killed if self.undisturbed.exists() else self.undisturbed)
        else:
            self.root.rmdir()

    def remove(self) -> None:
        """Delete the directory and everything in it."""
        shutil.rmtree(self.directory)

    def output(self, name: str) -> tuple[Path, Path]:
        """Return the files for standard output and standard error of one start."""
        return self.directory / "output" / f"{name}.out", self.directory / "output" / f"{name}.err"

    def progress(self, name: str) -> Path:
        return self.directory / "progress" / name

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment of one start: that of this process, with the root handed over."""
        return {
            **os.environ,
            "UNBROKEN_ROOT": str(self.root),
            "UNBROKEN_KEEP_FIRST": "1",
            PROGRESS: str(self.progress(name)),
        }


def tail(path: Path) -> tuple[str, ...]:
    """Return the last lines of a file; none if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-TAIL_LINES:]

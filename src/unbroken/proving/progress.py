"""Reading how far a running script is, from the few bytes that the engine keeps for it.

`engine/progress.py` writes them: the latest step, the last committed one, and the last one that another
process commits. They are written in one call, so a reader never sees them torn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from unbroken.engine.progress import LAYOUT


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a process has come. `committed` is 0 while nothing after the start is committed.

    `handed` is the step of the last snapshot that outlives the process; 0 if there was none.
    """

    step: int
    committed: int
    handed: int = 0


class ProgressFile:
    """The progress of one process; None until it has reported anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def read(self) -> Reached | None:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        data = os.pread(self._fd, LAYOUT.size, 0)
        return Reached(*LAYOUT.unpack(data)) if len(data) == LAYOUT.size else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def last_words(path: Path) -> Reached | None:
    """Return the progress of a process that is over; None if it has reported nothing."""
    file = ProgressFile(path)
    try:
        return file.read()
    finally:
        file.close()

"""What a training tells its worker processes of signals, without a word to them: a file without a name among the
descriptors of the trainer, which says which signals the trainer answers.

Whoever looks there sees it exactly as long as the trainer lives and answers: the kernel takes it away with the process.
Nothing is sent, so a worker in the middle of a step and a trainer in the middle of a read can neither block the other.

Not promised: anything on systems without `/proc` and memfds. There nobody is told anything, and workers do as ever.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from unbroken.repo.process import Process

NAME = "signals-unbroken"
_SHOWN_AS = f"/memfd:{NAME} (deleted)"


class Notice:
    """What this process shows. Nothing, until it is told to."""

    def __init__(self) -> None:
        self._descriptor = -1

    def show(self, numbers: Collection[int]) -> None:
        """Show that the process answers these signals; with none, show nothing."""
        before, self._descriptor = self._descriptor, -1
        if numbers:
            with suppress(OSError, AttributeError):
                self._descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC)
                os.write(self._descriptor, " ".join(map(str, sorted(numbers))).encode())
        if before >= 0:
            os.close(before)  # after the new one is there: between two notices there is no gap


def answered_by(trainer: Process) -> frozenset[int]:
    """Return the numbers of the signals that this process of the same host answers now; none if it is gone."""
    if trainer.is_alive() is False:
        return frozenset()
    with suppress(OSError, ValueError):
        for descriptor in Path(f"/proc/{trainer.pid}/fd").iterdir():
            # Any of them may be closed while it is looked at.
            with suppress(OSError):
                if os.readlink(descriptor) == _SHOWN_AS:
                    return frozenset(int(number) for number in descriptor.read_text("ascii").split())
    return frozenset()

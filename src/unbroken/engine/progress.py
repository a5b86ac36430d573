"""The steps of a run, for another process to read while it trains (`unbroken prove`).

If `UNBROKEN_PROGRESS` names a file, it holds 24 bytes: the latest step that the engine was asked about,
the latest step that was committed, and the latest step whose snapshot was handed to another process, which
commits it whatever becomes of this one. Each is an unsigned 64-bit little-endian number. The file is empty
until something was reported. It stays open while the run lives: who holds it open is the trainer.

Not promised: durability. It is a sign of life, not a record.
"""

from __future__ import annotations

import os
import struct
import weakref

from unbroken.errors import ConfigError

VARIABLE = "UNBROKEN_PROGRESS"
LAYOUT = struct.Struct("<QQQ")
"""The three numbers, for who writes them and for who reads them."""


class Progress:
    """Writes one progress file. Without a path every call does nothing."""

    __slots__ = ("__weakref__", "_committed", "_fd", "_handed", "_step")

    def __init__(self, path: str | None) -> None:
        self._fd = -1
        self._step = self._committed = self._handed = 0
        if not path:
            return
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{VARIABLE}={path!r} cannot be written: {error.strerror}.",
                hint="Unset the variable, or name a file that can be written.",
            ) from error
        # A forked environment worker must not look like the trainer to who kills by this file.
        mine: weakref.ref[Progress] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(mine))

    def step(self, step: int) -> None:
        """Report the step that the training has reached."""
        self._step = step
        if self._fd >= 0:
            self._write()

    def committed(self, step: int) -> None:
        """Report the step of the newest checkpoint that is on disk. Any thread may call this."""
        self._committed = step
        if self._fd >= 0:
            self._write()

    def handed(self, step: int) -> None:
        """Report the step of the newest snapshot that another process commits, even if this one dies."""
        self._handed = step
        if self._fd >= 0:
            self._write()

    def _write(self) -> None:
        os.pwrite(self._fd, LAYOUT.pack(self._step, self._committed, self._handed), 0)

    def close(self) -> None:
        """Close the file; later calls do nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _forget(reference: weakref.ref[Progress]) -> None:
    progress = reference()
    if progress is not None:
        progress.close()

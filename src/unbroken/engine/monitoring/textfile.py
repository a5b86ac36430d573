"""A file with the metrics of one run, for the textfile collector of Prometheus's node exporter.

It stays when the process is gone, so failures of a start, and counters over many starts, are told here and not by
an endpoint.

Invariants: whoever reads it sees all of one moment, or all of an earlier one; what is there already is replaced only
if it is such a file, or an empty one; nothing there, a pipe or a device, is waited for.

Not promised: that it survives a power loss. It is no record.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MODE = 0o644
"""The node exporter is another user's process; the umask still counts."""

MOST = 1 << 20
"""So many bytes at most are read of what is there already; ours has some thousands."""

_OURS = re.compile(rb"^(?:# (?:HELP|TYPE) )?unbroken_\w", re.MULTILINE)


class Textfile:
    """The file at `path`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser().absolute()
        self._aside = self._path.with_name(f".{self._path.name}.unbroken-tmp")
        """Always the same name: what a killed process has left is overwritten."""

    def counters(self, job: str) -> dict[str, float]:
        """Return the counters that an earlier process has left for this job; none if there is no such file, or it
        cannot be read.

        Raises:
            ConfigError: something else is there.
        """
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, float] = {}
        try:
            for family in text_string_to_metric_families(self._present().decode()):
                for sample in family.samples:
                    if sample.labels == {"job": job}:
                        found[sample.name] = sample.value
        except ConfigError:
            raise
        except (OSError, ValueError):
            return {}
        return found

    def _present(self) -> bytes:
        """Return what the file holds; nothing where there is none.

        Raises:
            ConfigError: something that is not ours to replace is there.
            OSError: it cannot be read.
        """
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return b""
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("It is no regular file.", hint="Name a file that is only for metrics.")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self._path, flags), "rb") as file:
            data = file.read(MOST)
        # Zeros are what a power loss may leave of ours.
        if data.strip(b"\0") and not _OURS.search(data):
            raise ConfigError(
                "It holds something else than our metrics, and is left as it is.",
                hint="Name a file that is only for metrics.",
            )
        return data

    def write(self, registry: CollectorRegistry) -> None:
        """Put the metrics of `registry` in the place of what the file held.

        Raises:
            ConfigError: something else is there, and stays.
            OSError: it cannot be written; what it held is still there.
        """
        from prometheus_client import generate_latest

        self._present()
        data = generate_latest(registry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self._aside, flags, MODE), "wb") as file:
                file.write(data)
            os.replace(self._aside, self._path)
        except OSError:
            self._aside.unlink(missing_ok=True)
            raise

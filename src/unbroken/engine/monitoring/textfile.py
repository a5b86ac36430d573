"""A file with the metrics of one run, for the textfile collector of Prometheus's node exporter.

It stays when the process is gone, so failures of a start, and counters over many starts, are told here and not by
an endpoint.

Invariant: whoever reads it sees all of one moment, or all of an earlier one.

Not promised: that it survives a power loss. It is no record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MODE = 0o644
"""The node exporter is another user's process; the umask still counts."""


class Textfile:
    """The file at `path`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser().absolute()
        self._aside = self._path.with_name(f".{self._path.name}.unbroken-tmp")
        """Always the same name: what a killed process has left is overwritten."""

    def counters(self, job: str) -> dict[str, float]:
        """Return the counters that an earlier process has left for this job; none if there is no such file, or it
        cannot be read."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, float] = {}
        try:
            for family in text_string_to_metric_families(self._path.read_text()):
                for sample in family.samples:
                    if sample.labels == {"job": job}:
                        found[sample.name] = sample.value
        except (OSError, ValueError):
            return {}
        return found

    def write(self, registry: CollectorRegistry) -> None:
        """Put the metrics of `registry` in the place of what the file held.

        Raises:
            OSError: it cannot be written; what it held is still there.
        """
        from prometheus_client import generate_latest

        data = generate_latest(registry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self._aside, flags, MODE), "wb") as file:
                file.write(data)
            os.replace(self._aside, self._path)
        except OSError:
            self._aside.unlink(missing_ok=True)
            raise

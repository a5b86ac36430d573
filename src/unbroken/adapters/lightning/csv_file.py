"""The `metrics.csv` of Lightning's `CSVLogger`: after a restore it holds what it held at the checkpoint, and no more.

Lightning deletes the file of a version that is begun again, before any callback is asked, so the text goes with
each checkpoint. A file only grows at its end as a rule, and a checkpoint stores the new part alone.

For the comparison of two runs there is a digest beside the text, of which values were logged at which steps: values
may be times.

Not promised: files on anything but this machine's disks.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from unbroken.capture.growing import GrowingFile
from unbroken.capture.whole_file import cannot_be_written, write_whole

HPARAMS = "hparams.yaml"


class CsvFile(GrowingFile):
    """The file of one logger's writer. Its digest knows which values were logged at which steps."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        super().__init__()

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self._writer.metrics_file_path)

    @property
    def columns(self) -> list[str]:
        """The columns of the text."""
        return self._header or []

    def read(self) -> None:
        """Have written what waits for it, and read what is new in it.

        Raises:
            OSError: it cannot be written, or read.
        """
        self._writer.save()
        try:
            self.read_from(self.path)
        except FileNotFoundError:  # nothing was logged yet
            self.begin()

    def _said(self, lines: list[str]) -> Iterable[str]:
        return self._rows(lines, _logged)

    def put_back(self, text: bytes) -> None:
        """Let the file hold this text, and what is logged come after it.

        Raises:
            RestoreFailed: it cannot be written.
        """
        self.begin()
        try:
            if text:
                write_whole(self.path, lambda file: file.write(text))
            else:
                with suppress(FileNotFoundError):
                    os.remove(self.path)
        except OSError as error:
            raise cannot_be_written(f"The log file {self.path}", error) from error
        self._writer.metrics = []
        self._writer.metrics_keys = _header(text)

    def move(self, folder: str) -> None:
        """Write into this directory from now on, after what is there.

        Raises:
            OSError: it cannot be read.
        """
        self.begin()
        path = os.path.join(folder, self._writer.NAME_METRICS_FILE)
        keys: list[str] = []
        with suppress(FileNotFoundError), open(path, "rb") as file:
            keys = _header(file.readline())
        self._writer.log_dir, self._writer.metrics_file_path = folder, path
        self._writer.metrics_keys = keys


def _logged(row: list[tuple[str, str]]) -> str:
    told = sorted(f"step {value}" if name == "step" else name for name, value in row)
    return "\n".join([*told, ""])


def _header(text: bytes) -> list[str]:
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    return next(csv.reader(lines[:1]), [])


def is_local(writer: Any) -> bool:
    """Whether a writer writes to this machine's disks."""
    protocol = getattr(getattr(writer, "_fs", None), "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))

"""The `metrics.csv` of Lightning's `CSVLogger`: after a restore it holds what it held at the checkpoint, and no more.

Lightning deletes the file of a version that is begun again, before any callback is asked, so the text goes with
each checkpoint. A file only grows at its end as a rule, and a checkpoint stores the new part alone.

For the comparison of two runs there is a digest beside the text, of which values were logged at which steps: values
may be times.

Not promised: files on anything but this machine's disks.
"""

from __future__ import annotations

import csv
import hashlib
import os
from contextlib import suppress
from typing import Any

from unbroken.errors import RestoreFailed

HPARAMS = "hparams.yaml"


class CsvFile:
    """The file of one logger's writer."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._begin()

    def _begin(self) -> None:
        self.text = b""
        self._digested = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._header: list[str] | None = None

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self._writer.metrics_file_path)

    def read(self) -> None:
        """Have written what waits for it, and read what is new in it.

        Raises:
            OSError: it cannot be written, or read.
        """
        self._writer.save()
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = self.text[: self.text.find(b"\n") + 1]
                # It is written anew, under another header, when a value is logged for the first time.
                if size < len(self.text) or file.read(len(head)) != head:
                    self._begin()
                file.seek(len(self.text))
                self.text += file.read()
        except FileNotFoundError:  # nothing was logged yet
            self._begin()
            return
        lines = self.text[self._digested :].decode("utf-8", "surrogateescape").splitlines()
        self._digested = len(self.text)
        for row in csv.reader(lines):
            if self._header is None:
                self._header = row
                continue
            pairs = zip(self._header, row, strict=False)
            told = sorted(f"step {value}" if name == "step" else name for name, value in pairs if value)
            self._hash.update("\n".join([*told, "\n"]).encode("utf-8", "surrogateescape"))

    @property
    def columns(self) -> list[str]:
        """The columns of the text."""
        return self._header or []

    @property
    def digest(self) -> str:
        """A digest of which values were logged at which steps."""
        return self._hash.hexdigest()

    def put_back(self, text: bytes) -> None:
        """Let the file hold this text, and what is logged come after it.

        Raises:
            RestoreFailed: it cannot be written.
        """
        self._begin()
        try:
            if text:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                beside = f"{self.path}.{os.getpid()}"
                with open(beside, "wb") as file:
                    file.write(text)
                os.replace(beside, self.path)  # never half of it, wherever this process is killed
            else:
                with suppress(FileNotFoundError):
                    os.remove(self.path)
        except OSError as error:
            raise RestoreFailed(
                f"The log file {self.path} cannot be written: {error.strerror}.",
                hint="Make room or make it writable, and start again; the checkpoint still has its content.",
            ) from error
        self._writer.metrics = []
        self._writer.metrics_keys = _header(text)

    def move(self, folder: str) -> None:
        """Write into this directory from now on, after what is there.

        Raises:
            OSError: it cannot be read.
        """
        self._begin()
        path = os.path.join(folder, self._writer.NAME_METRICS_FILE)
        keys: list[str] = []
        with suppress(FileNotFoundError), open(path, "rb") as file:
            keys = _header(file.readline())
        self._writer.log_dir, self._writer.metrics_file_path = folder, path
        self._writer.metrics_keys = keys


def _header(text: bytes) -> list[str]:
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    return next(csv.reader(lines[:1]), [])


def is_local(writer: Any) -> bool:
    """Whether a writer writes to this machine's disks."""
    protocol = getattr(getattr(writer, "_fs", None), "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))

"""A file to which another library logs, line by line: its text for a checkpoint, and a digest of what it says.

As a rule it grows at its end only. Then the new part alone is read, and a checkpoint stores that alone.

Not promised: that a change in the middle is seen. What is looked for is a file that was begun anew: a shorter one, one
with another first line, or one that says something else where the last reading ended.
"""

from __future__ import annotations

import csv
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

TAIL = 4096
"""Bytes before the end of what is known that are compared at each reading."""


class GrowingFile(ABC):
    """What one file held when it was read last."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Know nothing of it."""
        self.text = b""
        self._digested = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._header: list[str] | None = None

    def read_from(self, path: str) -> None:
        """Read what the file holds by now.

        Raises:
            OSError: it cannot be read.
        """
        head, tail = self.text[: self.text.find(b"\n") + 1], self.text[-TAIL:]
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A CSV is written anew, under another header, when a value is logged for the first time.
            same = size >= len(self.text) and file.read(len(head)) == head
            file.seek(len(self.text) - len(tail))
            if not same or file.read(len(tail)) != tail:
                self.begin()
            if size == len(self.text):
                return
            file.seek(len(self.text))
            self.text += file.read()
        end = self.text.rfind(b"\n") + 1
        new, self._digested = self.text[self._digested : end], end
        for line in self._said(new.decode("utf-8", "surrogateescape").split("\n")[:-1]):
            self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")

    def digest(self) -> str:
        """Return a digest of what it says."""
        return self._hash.hexdigest()

    @abstractmethod
    def _said(self, lines: list[str]) -> Iterable[str]:
        """Return what whole new lines say that has to be the same in another run, for the digest."""

    def _rows(self, lines: list[str], said: Callable[[list[tuple[str, str]]], str]) -> Iterator[str]:
        """Read lines as those of a CSV: yield what `said` makes of each row's columns that have a value."""
        try:
            for row in csv.reader(lines):
                if self._header is None:
                    self._header = row
                else:
                    yield said([pair for pair in zip(self._header, row, strict=False) if pair[1]])
        except csv.Error:  # a text longer than any field may be: where it stands is compared as it is
            yield from lines

"""Spoils lines of a server's log in the file, as a disk does: a bit flips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.keys import log_key
from unbroken.adapters.nemo_gym.log import Log

Which = Callable[[Sequence[bytes]], Sequence[bytes]]


def last(lines: Sequence[bytes]) -> Sequence[bytes]:
    return lines[-1:]


def all_of(lines: Sequence[bytes]) -> Sequence[bytes]:
    return lines


def spoil(directory: Path, *what: tuple[str, type[Any], Which]) -> None:
    """Flip a bit in lines of a log that nobody has open: (whose they are, their kind, which of them)."""
    log = Log.open(directory, key=log_key())
    lines = [(line.label, records.entry(line.payload), line.payload) for line in log.lines if line.payload]
    log.close()
    path = directory / "log"
    data = bytearray(path.read_bytes())
    for label, kind, which in what:
        found = [payload for whose, entry, payload in lines if whose == label and isinstance(entry, kind)]
        assert found, f"there is no {kind.__name__} of {label}"
        for payload in which(found):
            at = data.index(payload)
            data[at + len(payload) - 3] ^= 1
    path.write_bytes(data)

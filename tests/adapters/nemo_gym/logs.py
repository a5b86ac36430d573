"""Logs that the tests write and read again."""

from __future__ import annotations

import threading
from pathlib import Path

from unbroken.adapters.nemo_gym.log import Line, Log
from unbroken.store.system import System

KEY = b"k" * 32
OLD = [Line("a", b"1"), Line("b", b"2" * 100), Line("", b"3")]
NEW = [Line("a", b"all"), Line("b", b"")]


class CountingSystem(System):
    """Counts syncs; each waits until `go` is set."""

    def __init__(self) -> None:
        self.syncs = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def fsync(self, descriptor: int) -> None:
        self.syncs += 1
        self.begun.set()
        assert self.go.wait(60)
        super().fsync(descriptor)


def fill(directory: Path, lines: list[Line], *, system: System | None = None) -> None:
    log = Log.open(directory, key=KEY, system=system)
    for line in lines:
        log.append(line.label, line.payload)
    log.close()


def read(directory: Path) -> list[Line]:
    log = Log.open(directory, key=KEY)
    log.close()
    assert log.damaged == []
    return log.lines

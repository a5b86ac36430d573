"""What the benchmark asks of everybody who can save a workload."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

from benchmarks.workloads import Workload


class Contender(Protocol):
    """One way to save a workload and to bring it back. Made anew for every measuring process."""

    name: ClassVar[str]
    background: ClassVar[bool]
    """Whether `save` returns before everything is written; if not, training waits until it is durable."""
    durable: ClassVar[bool]
    """Whether it makes its files durable by itself; for the others the benchmark calls fsync."""
    needs_buffer: ClassVar[bool]
    """Whether it is about the buffer, and has no meaning for a workload without one."""

    def __init__(self, workload: Workload, home: Path) -> None: ...

    def prepare(self) -> None:
        """Import and connect what a program would have anyway. Not measured."""

    def start(self) -> None:
        """Do what comes before training begins; the workload is as in a new process. The memory that this
        takes counts, its time does not."""

    def save(self) -> None:
        """Save. Returns when training may go on and overwrite its memory."""

    def finish(self) -> None:
        """Wait until everything that a load needs is written."""

    def tidy(self) -> None:
        """Remove what only older saves need. Its time is not measured; its memory and its writes are."""

    def leave(self) -> None:
        """Let go of what was saved, so that a load can begin as in a new process. Not measured."""

    def load(self) -> None:
        """Bring the newest save back into the workload, which has just been reset."""

    def close(self) -> None:
        """Give back what `prepare` and `start` took."""

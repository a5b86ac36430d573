"""Environment workers that outlived their trainer.

Workers started by fork hold the ends of each other's pipes and never see that the trainer is gone: they
would keep memory, and files of Monitor, for ever. Who they are is written down when training starts;
the next start of the run ends exactly those that still are these processes, if their trainer is no more.

Not promised: workers of a process that was killed before it had come to its first rollout.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from unbroken.errors import ObjectMissing
from unbroken.repo import process
from unbroken.repo.process import Process
from unbroken.store.base import ByteStore

KEY = "workers.json"


class Identity(msgspec.Struct, frozen=True):
    """A process, as `Process` is written down."""

    pid: int
    start: str
    boot_id: str
    host: str

    @classmethod
    def of(cls, known: Process) -> Identity:
        """Return how `known` is written down."""
        return cls(known.pid, known.start, known.boot_id, known.host)

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None if that cannot be told from here."""
        return Process(pid=self.pid, start=self.start, boot_id=self.boot_id, host=self.host).is_alive()


class Started(msgspec.Struct, frozen=True):
    """The workers of one trainer."""

    trainer: Identity
    workers: list[Identity]


def identify(pid: int) -> Process:
    """Return who the running process `pid` is."""
    return replace(process.current(), pid=pid, start=process._start_of(pid) or "")


def record(store: ByteStore, pids: Iterable[int], *, trainer: int | None = None) -> None:
    """Write down who the workers of this trainer are."""
    own = process.current() if trainer is None else identify(trainer)
    workers = [Identity.of(identify(pid)) for pid in pids]
    store.put(KEY, msgspec.json.encode(Started(Identity.of(own), workers)))


def reap(store: ByteStore) -> list[int]:
    """End the workers of the last trainer that are still there, and return their process ids."""
    try:
        recorded = msgspec.json.decode(store.get(KEY), type=Started)
    except (ObjectMissing, msgspec.DecodeError):
        return []
    # Both times nothing but a certain answer: a number alone may belong to anybody by now.
    if recorded.trainer.is_alive is not False:
        return []
    ended: list[int] = []
    for worker in recorded.workers:
        if worker.is_alive is True:
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            ended.append(worker.pid)
    return ended

"""Environment workers that outlived their trainer.

Workers started by fork hold the ends of each other's pipes and never see that the trainer is gone: they
would keep memory, and files of Monitor, for ever. Who they are is written down when training starts;
the next start of the run, which holds its lock, ends exactly those that still are these processes.

Not promised: workers of a process that was killed before it had come to its first rollout.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from unbroken.errors import ObjectMissing
from unbroken.repo import process
from unbroken.repo.process import Process
from unbroken.store.base import ByteStore

KEY = "workers.json"


class Started(msgspec.Struct, frozen=True):
    """One worker."""

    pid: int
    start: str
    boot_id: str
    host: str


def identify(pid: int) -> Process:
    """Return who the running process `pid` is."""
    return replace(process.current(), pid=pid, start=process._start_of(pid) or "")


def record(store: ByteStore, pids: Iterable[int]) -> None:
    """Write down who the workers of this trainer are."""
    workers = [Started(w.pid, w.start, w.boot_id, w.host) for w in map(identify, pids)]
    store.put(KEY, msgspec.json.encode(workers))


def reap(store: ByteStore, *, spare: Collection[int] = ()) -> list[int]:
    """End the workers of the last trainer that are still there, and return their process ids.

    `spare` are the workers of this one. Only for whoever holds the run's lock: then that trainer is no more.
    """
    try:
        recorded = msgspec.json.decode(store.get(KEY), type=list[Started])
    except (ObjectMissing, msgspec.DecodeError):
        return []
    ended: list[int] = []
    for one in recorded:
        worker = Process(pid=one.pid, start=one.start, boot_id=one.boot_id, host=one.host)
        # Nothing but a certain yes: a number alone may belong to anybody by now.
        if worker.pid != os.getpid() and worker.pid not in spare and worker.is_alive() is True:
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            ended.append(worker.pid)
    return ended

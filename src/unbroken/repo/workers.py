"""Which processes a trainer had started: a hint, for ending those that outlived it.

Whether one of them still is that process is told by its start time, never by its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import WorkersRecord
from unbroken.repo.process import Process, named_in
from unbroken.repo.seal import unseal
from unbroken.store.base import ByteStore


@dataclass(frozen=True, slots=True)
class Workers:
    """The last trainer that recorded its workers, and who they were."""

    trainer: Process
    workers: tuple[Process, ...]


def read_workers(store: ByteStore) -> Workers | None:
    """Return the workers on record, None if there is no record that can be read."""
    try:
        record = unseal(store.get(layout.WORKERS), WorkersRecord, key=layout.WORKERS)
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return None  # a hint only: a damaged one must not keep anybody from starting
    trainer = named_in(record)
    return Workers(
        trainer,
        tuple(replace(trainer, pid=worker.pid, start=worker.process_start) for worker in record.workers),
    )

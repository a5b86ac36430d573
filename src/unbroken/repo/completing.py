"""What metadata of a checkpoint say beside what the caller has said: who saves, when, how much, and how exactly.

Not promised: that what the caller says is so.
"""

from __future__ import annotations

import msgspec

from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.repo.process import Process
from unbroken.state.snapshot import Snapshot


def completed(meta: Meta, snapshot: Snapshot, *, job: str, owner: Process, now: float) -> Meta:
    """Return the metadata with everything filled in that was left empty."""
    fidelity = {
        name: ComponentFidelity(promise.fidelity, promise.reason)
        for name, promise in snapshot.promises.items()
    }
    return msgspec.structs.replace(
        meta,
        job=job,
        pid=meta.pid or owner.pid,
        process_start=meta.process_start or owner.start,
        host=meta.host or owner.host,
        boot_id=meta.boot_id or owner.boot_id,
        time=meta.time or now,
        bytes=meta.bytes or sum(component.nbytes for component in snapshot.components.values()),
        fidelity=meta.fidelity or fidelity,
        counters=meta.counters or snapshot.counters,
        notes=meta.notes or [f"{note.kind}: {note.place}: {note.detail}" for note in snapshot.notes],
    )

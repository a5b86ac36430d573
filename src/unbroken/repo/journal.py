"""The entries of a run's journal: one for each checkpoint, readable without anything else of the run.

Invariant: an entry is read only under the moment for which it was written, and only if its own digests fit.
Not promised: that each checkpoint has one. An entry that cannot be written costs no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.errors import CorruptObject, ObjectMissing
from unbroken.format import journal
from unbroken.format.digest import digest_of
from unbroken.format.journal import HEADER_BYTES, JOURNAL, JournalRecord, Moment
from unbroken.format.records import Commit
from unbroken.repo.seal import seal, unseal
from unbroken.state.snapshot import Component
from unbroken.store.base import ByteStore
from unbroken.types import Digest


def write(
    store: ByteStore, moment: Moment, component: Component, *, state: Digest, problem: str = ""
) -> None:
    """Write the entry of a moment durably.

    Raises:
        StoreError: it could not be written.
    """
    document, blobs = journal.payload(component)
    record = seal(
        JournalRecord(
            step=moment.step,  # type: ignore[arg-type]
            segment=moment.segment,
            position=moment.position,
            time=moment.time,
            state=state,
            document=len(document),
            blobs=[len(blob) for blob in blobs],
            content=digest_of([document, *blobs]),
            problem=problem,
        )
    )
    store.put(moment.key, b"".join([len(record).to_bytes(HEADER_BYTES, "little"), record, document, *blobs]))


def read(store: ByteStore, commit: Commit) -> tuple[JournalRecord, Component]:
    """Return the entry of a checkpoint.

    Raises:
        CorruptObject: there is none, or it is damaged.
    """
    moment = Moment.of(commit)
    key = moment.key
    try:
        data = store.get(key)
    except ObjectMissing as error:
        raise CorruptObject(f"The journal has no entry for step {commit.step:,}.", key=key) from error
    head, content = journal.split(data, key=key)
    record = unseal(head, JournalRecord, key=key)
    if Moment.of(record) != moment:
        raise CorruptObject(f"{key} speaks of another checkpoint.", key=key)
    return record, journal.component_of(record, content, key=key)


def sweep(store: ByteStore, commits: Iterable[Commit]) -> None:
    """Delete the entries of checkpoints that are gone.

    Raises:
        StoreError: one could not be deleted.
    """
    wanted = {Moment.of(commit).key for commit in commits}
    for key in list(store.list(JOURNAL)):
        if key not in wanted:
            store.delete(key)


def is_there(store: ByteStore) -> bool:
    """Whether the run keeps a journal."""
    return any(True for _ in store.list(JOURNAL))

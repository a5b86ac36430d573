"""What is set aside: checkpoints that no start could go on from, and of which something can still be read.

A start that begins anew because nothing could be used leaves them there: whoever looks finds weights that are whole in
a checkpoint whose environments are not. Retention keeps them beside what it keeps and counts none of them; a person
deletes them with a prune.

Invariants: the record is durable before the first checkpoint of the new beginning is; a save never builds on their
blobs, which may be damaged in places that nobody has read; what cannot be read of them keeps nothing else alive.

Not promised: a checkpoint whose manifest cannot be read, since then nothing of it can.
"""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format.aside import ASIDE, Aside
from unbroken.format.records import Commit
from unbroken.repo.process import Process
from unbroken.repo.seal import seal, unseal
from unbroken.store.base import ByteStore
from unbroken.types import Sequence

REASON = "set aside by a start that began anew"


def aside(store: ByteStore, commits: Iterable[Commit]) -> frozenset[Sequence]:
    """Return which of the commits are set aside. Where the record cannot be read, all of them: rather too many are
    kept than one too few."""
    every = frozenset(commit.sequence for commit in commits)
    try:
        return every.intersection(_read(store).sequences)
    except ObjectMissing:
        return frozenset()
    except (CorruptObject, UnsupportedFormat):
        return every


def known_aside(store: ByteStore) -> frozenset[Sequence]:
    """Return which commits are on record as set aside, for people: none where the record cannot be read."""
    try:
        return frozenset(_read(store).sequences)
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return frozenset()


def is_damaged(store: ByteStore) -> bool:
    """Whether there is a record that cannot be read, so that it is to be written anew."""
    try:
        _read(store)
    except CorruptObject:
        return True
    except (ObjectMissing, UnsupportedFormat):
        return False
    return False


def moment(store: ByteStore) -> float | None:
    """Return when checkpoints were last set aside; None if never, or if that cannot be read."""
    try:
        return _read(store).time
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return None


def set_aside(store: ByteStore, commits: Iterable[Commit], *, job: str, owner: Process, time: float) -> None:
    """Put on record that these commits, and those set aside before which are among them, are kept.

    Raises:
        StoreError: it could not be written.
    """
    record = Aside(
        job=job, **owner.as_owner(), time=time, sequences=sorted(commit.sequence for commit in commits)
    )
    store.put(ASIDE, seal(record))


def _read(store: ByteStore) -> Aside:
    return unseal(store.get(ASIDE), Aside, key=ASIDE)

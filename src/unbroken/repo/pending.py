"""The note of a save that was begun. It goes when the save is committed.

A kill between the two leaves the note beside the commit; whoever closes the run takes it away then. One of a save that
is not there stays: the next start tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import Commit, Pending
from unbroken.repo.log import read_log
from unbroken.repo.seal import unseal
from unbroken.store.base import ByteStore


def read_pending(store: ByteStore) -> Pending | None:
    """Return the note, or None if there is none.

    Raises:
        CorruptObject: there is one that cannot be read.
        UnsupportedFormat: it was written by a newer version.
    """
    try:
        data = store.get(layout.PENDING).rstrip(b" ")
    except ObjectMissing:
        return None
    return unseal(data, Pending, key=layout.PENDING) if data else None


def remove_settled(store: ByteStore) -> None:
    """Delete the note where it is blank, torn, or of a save that is committed: it tells nothing then.

    Raises:
        StoreError: it could not be looked for or deleted.
    """
    try:
        pending = read_pending(store)
    except CorruptObject:
        pending = None
    except UnsupportedFormat:
        return  # not ours to judge
    if pending is None or _is_there(pending, read_log(store).commits):
        store.delete(layout.PENDING)


def _is_there(pending: Pending, commits: Iterable[Commit]) -> bool:
    return any((pending.segment, pending.step) == (commit.segment, commit.step) for commit in commits)

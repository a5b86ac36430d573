"""What pruning a run would delete and rewrite, found out without taking the run or changing anything.

Carried out by `RunWriter.prune`, which plans anew once the run is its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.errors import RunBusy
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.repo import aside, collect, compaction, fencing, pins
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, References
from unbroken.repo.collect import GcPlan, Inventory
from unbroken.repo.compaction import CompactionPlan
from unbroken.repo.lock import await_companion, read_lease
from unbroken.repo.log import is_gone, read_log
from unbroken.repo.process import Process, named_in
from unbroken.repo.reader import Reader
from unbroken.repo.retention import RetentionPlan, plan_retention
from unbroken.repo.settled import ATTEMPTS, settled
from unbroken.store.base import ByteStore
from unbroken.types import Epoch


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What would be done now. `busy` is the process that writes to the run, or may: it has to end first."""

    retention: RetentionPlan | None
    collection: GcPlan
    compaction: CompactionPlan
    inventory: Inventory
    index: BlobIndex
    busy: Process | None
    lists: ChunkLists
    """Those that were read for it: whoever asks further reads none of them again."""


def plan_prune(store: ByteStore, *, keep_last: int | None = None) -> PrunePlan:
    """Plan what to delete so that `keep_last` checkpoints stay (None: all), and what is dead to be gone.

    While a process writes to the run, what it may be saving just now is spared.
    """
    for _ in range(ATTEMPTS - 1):
        plan = _plan(store, keep_last)
        references = plan.inventory.references
        # What cannot be read spares much: not for the sake of one that the training has just deleted.
        if not any(references[c.sequence] is None and is_gone(store, c) for c in plan.inventory.log.commits):
            return plan
    return _plan(store, keep_last)


def _plan(store: ByteStore, keep_last: int | None) -> PrunePlan:
    busy = holder(store)
    log = read_log(store)
    epochs = fencing.read_epochs(store)
    lease = read_lease(store)
    epoch = Epoch(lease.epoch - 1 if busy is not None and lease is not None else epochs.highest + 1)
    index = BlobIndex(store)
    index.refresh()
    lists = ChunkLists(index)
    apart = aside.aside(store, log.commits)

    def needed_by(reader: Reader, lists: ChunkLists, commit: Commit) -> References:
        return reader.readable(lists) if commit.sequence in apart else reader.references(lists)

    inventory = collect.take_inventory(
        store,
        log,
        index,
        lambda commit: settled(index, lambda: needed_by(Reader(store, index, commit), lists, commit)),
    )
    retention = None if keep_last is None else retention_now(store, log.commits, keep_last)
    dropped = frozenset(commit.sequence for commit in (retention.dropped if retention is not None else ()))
    collection = collect.plan_gc(inventory, epoch=epoch, drop=dropped, keep_last=keep_last)
    rewritten = CompactionPlan()
    if collection.needed is not None:
        gone = {layout.pack_name(key) for key in collection.packs}
        packs = {name: found for name, found in index.packs.items() if name not in gone}
        rewritten = compaction.plan_compaction(packs, collection.needed.blobs, compaction.WHOLE, epoch=epoch)
    return PrunePlan(retention, collection, rewritten, inventory, index, busy, lists)


def retention_now(store: ByteStore, commits: Iterable[Commit], keep_last: int) -> RetentionPlan:
    """Return which commits a person's wish for `keep_last` leaves: what somebody is about to read stays, what is set
    aside goes."""
    return plan_retention(commits, keep_last=keep_last, pinned=pins.pinned(store, now=time.time()))


def holder(store: ByteStore) -> Process | None:
    """Return the process that writes to the run, or of which nobody here can tell whether it still does.

    Where the owner is gone and its companion still writes the last checkpoint, that is the companion.
    """
    lease = read_lease(store)
    if lease is None:
        return None
    owner = named_in(lease)
    return await_companion(store, patience=0.0) if owner.is_alive() is False else owner


def check_idle(store: ByteStore, job: str, *, otherwise: str) -> None:
    """Refuse to take a run from a process that may be training.

    The lock does so for processes of this machine; one of another might be alive, and would be fenced.
    `otherwise` is what the caller offers a person who knows that it is not.

    Raises:
        RunBusy: the run is held, or was last held by a process of which that cannot be told.
    """
    owner = holder(store)
    if owner is None:
        return
    if owner.is_alive():
        raise RunBusy(f"The run {job!r} is in use by {owner}.", hint="Stop it or wait for its end.")
    raise RunBusy(
        f"The run {job!r} was last held by {owner}, and it cannot be told from here whether that has ended.",
        hint=f"Do this on that machine; if the process is gone for good, {otherwise}.",
    )

"""Garbage: what to delete, as a pure plan, and the deletion.

Deletion runs in the reverse order of writing: the commit record first, then its documents, then packs
that no kept checkpoint needs. So no reader ever meets a commit whose objects are gone, and a crash at
any point leaves only garbage, which the next sweep removes.

Only leftovers of one's own and of earlier epochs are touched; those are over for good, so no grace
period is needed: what an overtaken writer still commits is inert. Whatever has a name that is not
understood stays. Where something that is kept cannot be read, nothing is deleted that it might need.

The claim is looked at before every single key is handed to the store, and a group is gone before the next
begins. So a writer that was overtaken in the middle does at most what is on its way (one deletion; of a
bucket, one request), and that is harmless: a pack goes only after the commit records that named it, so
whoever claims the run from then on never builds on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import Commit, LowWater
from unbroken.repo import fencing, names
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import Needed, References, all_blobs
from unbroken.repo.log import CommitLog
from unbroken.repo.seal import seal
from unbroken.store.base import ByteStore, delete_all, exists
from unbroken.types import Digest, Epoch, Sequence


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that lies in a run, as far as deletion needs to know.

    `references` holds what each commit that counts needs; None where that cannot be read.
    `contents` holds the blobs of each pack whose index can be read.
    """

    log: CommitLog
    references: Mapping[Sequence, References | None]
    step_objects: tuple[names.StepObject, ...]
    pack_objects: tuple[str, ...]
    contents: Mapping[str, Collection[Digest]]
    births: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class Spared:
    """An object that no kept checkpoint is known to need, and why it stays nevertheless."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What to delete, in this order. `str()` of it says how much of each."""

    commits: tuple[str, ...]
    documents: tuple[str, ...]
    packs: tuple[str, ...]
    births: tuple[str, ...]
    low_water: Sequence | None
    needed: Needed | None = field(repr=False, compare=False)
    """Every blob that what is kept needs; None where something that is kept cannot be read."""
    spared: tuple[Spared, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.commits + self.documents + self.packs + self.births

    def __str__(self) -> str:
        packs = sum(key.endswith(".pack") for key in self.packs)
        return f"delete {len(self.commits)} commits, {len(self.documents)} documents, {packs} packs"


def take_inventory(
    store: ByteStore, log: CommitLog, index: BlobIndex, references: Callable[[Commit], References]
) -> Inventory:
    """Look at what lies in a run. `references` returns what a commit needs."""
    needed: dict[Sequence, References | None] = {}
    for commit in log.commits:
        try:
            needed[commit.sequence] = references(commit)
        except (CorruptObject, UnsupportedFormat, ObjectMissing):
            needed[commit.sequence] = None
    index.refresh()
    listed = frozenset(store.list(layout.PACKS))
    return Inventory(
        log=log,
        references=needed,
        step_objects=tuple(
            found for key in store.list(layout.STEPS) if (found := names.parse_step_object(key)) is not None
        ),
        pack_objects=tuple(
            key
            for key in sorted(listed)
            if (name := layout.pack_name(key)) is not None and _is_known(store, index, name, listed)
        ),
        births=tuple(
            name for key in store.list(layout.BIRTHS) if (name := layout.birth_name(key)) is not None
        ),
        contents={name: [entry.digest for entry in found.entries] for name, found in index.packs.items()},
    )


def plan_gc(
    inventory: Inventory,
    *,
    epoch: Epoch,
    drop: Collection[Sequence] = (),
    keep_last: int | None = None,
    births: Collection[Digest] = (),
) -> GcPlan:
    """Plan what to delete when the commits `drop` go and all others that count stay.

    A commit record that cannot be read stays, with everything that it might need, until `keep_last`
    newer commits are kept; then it is past its time anyhow. With None it stays for good. `births` are
    documents that a commit is going to name.
    """
    log = inventory.log
    kept = [commit for commit in log.commits if commit.sequence not in drop]
    dropped = [commit for commit in log.commits if commit.sequence in drop]
    dropped += [commit for commit in log.stale if commit.epoch < epoch]
    broken = {
        fault.key: sequence
        for fault in log.broken
        if (sequence := layout.commit_sequence(fault.key)) is not None
    }
    expired = {
        key: sequence
        for key, sequence in broken.items()
        if keep_last is not None and sum(commit.sequence > sequence for commit in kept) >= keep_last
    }
    certain = broken.keys() == expired.keys()
    gone = [commit.sequence for commit in dropped] + list(expired.values())

    ours = frozenset(commit.directory for commit in kept)
    theirs = frozenset(commit.directory for commit in dropped)
    documents: list[names.StepObject] = []
    spared: list[Spared] = []
    for found in inventory.step_objects:
        if found.directory in ours:
            continue
        reason = _reason_to_spare(found.write_id, epoch, certain=certain or found.directory in theirs)
        if reason:
            spared.append(Spared(f"{found.directory}/{found.name}", reason))
        else:
            documents.append(found)
    references = [inventory.references[commit.sequence] for commit in kept]
    needed = all_blobs(one for one in references if one is not None)
    known = certain and None not in references
    packs: list[tuple[str, str]] = []
    for name, key in _unneeded_packs(inventory, needed):
        reason = _reason_to_spare(name, epoch, certain=known)
        if reason:
            spared.append(Spared(key, reason))
        else:
            packs.append((name, key))
    return GcPlan(
        commits=tuple(sorted([*(layout.commit(commit.sequence) for commit in dropped), *expired])),
        documents=tuple(
            f"{found.directory}/{found.name}" for found in sorted(documents, key=_last_written_first)
        ),
        # The index goes before its pack: an index alone would promise blobs that are gone.
        packs=tuple(key for _, key in sorted(packs)),
        births=_unneeded_births(inventory, kept, births) if known else (),
        low_water=Sequence(max(gone) + 1) if gone else None,
        needed=needed if known else None,
        spared=tuple(spared),
    )


def execute(store: ByteStore, plan: GcPlan, *, claim: fencing.Claim) -> None:
    """Delete what the plan says.

    Raises:
        Fenced: a later process has claimed the run; nothing is deleted from then on.
    """
    if plan.keys:
        fencing.check(store, claim)
    if plan.low_water is not None and plan.low_water > fencing.low_water(store):
        # Before the first deletion: else a number could be used again after a crash in between.
        store.put(layout.LOW_WATER, seal(LowWater(sequence=plan.low_water, epoch=claim.epoch)))
    # One after the other: a pack that is gone while a record still names it would be a loss.
    for group in (plan.commits, plan.documents, plan.packs, plan.births):
        delete_claimed(store, group, claim=claim)


def delete_claimed(store: ByteStore, keys: Iterable[str], *, claim: fencing.Claim) -> None:
    """Delete objects, in any order, as long as the run is ours: that is asked before each one.

    Raises:
        Fenced: a later process has claimed the run; nothing is deleted from then on.
    """

    def claimed() -> Iterator[str]:
        for key in keys:
            fencing.check(store, claim)
            yield key

    delete_all(store, claimed())


def _is_known(store: ByteStore, index: BlobIndex, name: str, listed: Collection[str]) -> bool:
    """Whether it is certain what a pack holds, or that it has no index.

    A listing may lag behind. A pack whose index exists and was not seen is no leftover: it may be all
    that is left of others, which its writer, a process that we have overtaken, is about to delete.
    """
    if name in index.packs or name in index.damaged:
        return True
    return layout.index(name) not in listed and not exists(store, layout.index(name))


def _reason_to_spare(write_id: str, epoch: Epoch, *, certain: bool) -> str:
    """Return why something that no kept checkpoint is known to need stays; nothing if it may go."""
    writer = names.epoch_of(write_id)
    if writer is None:
        return "not of a writer that is known here"
    if writer > epoch:
        return f"the process of epoch {writer} may still be saving it"
    return "" if certain else "a checkpoint that cannot be read may need it"


def _last_written_first(found: names.StepObject) -> tuple[str, int, str]:
    order = {layout.MANIFEST: 0, layout.META: 1}
    return found.directory, order.get(found.name, 2), found.name


def _unneeded_births(
    inventory: Inventory, kept: Collection[Commit], wanted: Collection[Digest]
) -> tuple[str, ...]:
    needed = {commit.birth for commit in kept}.union(wanted)
    needed.update(
        name for commit in kept if (found := inventory.references[commit.sequence]) for name in found.births
    )
    return tuple(layout.birth(name) for name in sorted(inventory.births) if name not in needed)


def _unneeded_packs(inventory: Inventory, needed: Needed) -> Iterator[tuple[str, str]]:
    """Yield name and key of packs, and of their indexes, that hold nothing that is known to be needed."""
    # A pack without a readable index is a leftover, unless something that is needed cannot be found.
    complete = all(name in inventory.contents for name in map(layout.pack_name, inventory.pack_objects)) or (
        needed.blobs <= frozenset[Digest]().union(*inventory.contents.values())
    )
    for key in inventory.pack_objects:
        name = layout.pack_name(key)
        if name is None:
            continue
        contents = inventory.contents.get(name)
        if complete if contents is None else needed.blobs.isdisjoint(contents):
            yield name, key

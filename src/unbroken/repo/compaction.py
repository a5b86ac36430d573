"""Compaction: packs that are mostly dead are replaced by one that holds what still lives in them.

As a pure plan, and its execution, step by step: the new pack and its index are durable before the first of
the old ones goes, so a crash anywhere leaves every blob in at least one place. What it leaves twice, the
next compaction finds.

A pack goes only when each live blob of it lies in another pack *of this very epoch*. A copy in a pack of an
earlier epoch does not count: its writer, a process that was overtaken in the middle of a compaction, may be
about to delete it, and to keep the one that we delete. For the same reason a pack whose deletion was begun
is no place to rely on.

Stored bytes are copied as they are, and checked on the way. A pack with a live blob that is damaged
everywhere is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from unbroken.errors import Fenced, StoreError, StoreFull
from unbroken.format import layout, pack
from unbroken.format.buffers import Buffer, Content
from unbroken.format.compression import BlobCodec
from unbroken.format.pack import PackEntry, PackIndex
from unbroken.repo import fencing, names
from unbroken.repo.ballast import free_bytes
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.collect import delete_claimed
from unbroken.repo.encoding import PACK_BYTES
from unbroken.repo.fault import ObjectFault
from unbroken.repo.packsize import pack_bytes
from unbroken.repo.stored import read_stored
from unbroken.store.base import ByteStore, put_all
from unbroken.types import Digest, Epoch


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a compaction goes: which share of a pack must be dead, and how many bytes it may write in all."""

    least_dead: float
    most_bytes: int | None = None


WHOLE: Final = Effort(least_dead=0.05)
"""Leaves next to nothing that is dead: for `prune`, which somebody has asked for."""
ALLOWANCE = 64 << 20


def after_a_save(nbytes: int) -> Effort:
    """Return the effort that goes with a save which wrote so many bytes: it never dominates what training waits for.

    A pack that is half dead costs at most as many bytes as it frees.
    """
    return Effort(least_dead=0.5, most_bytes=nbytes + ALLOWANCE)


@dataclass(frozen=True, slots=True)
class Step:
    """One new pack, with these blobs, and the packs that go when it is durable. Without blobs they just go."""

    blobs: tuple[Digest, ...]
    packs: tuple[str, ...]
    written: int
    """Bytes of the new pack and its index."""
    freed: int
    """Bytes of the packs that go, and of their indexes."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite, in this order: a later step may rely on what an earlier one has written."""

    steps: tuple[Step, ...] = ()

    @property
    def packs(self) -> tuple[str, ...]:
        return tuple(name for step in self.steps for name in step.packs)

    @property
    def written(self) -> int:
        return sum(step.written for step in self.steps)

    @property
    def freed(self) -> int:
        """Bytes that go; those that are written come on top."""
        return sum(step.freed for step in self.steps)


@dataclass(slots=True)
class Compacted:
    """What was done."""

    packs: list[str] = field(default_factory=list[str])
    """Packs that went."""
    written: int = 0
    freed: int = 0
    faults: list[ObjectFault] = field(default_factory=list[ObjectFault])
    """Damaged blobs that some checkpoint needs; packs that hold them were left alone."""
    missing_room: int = 0
    """Where it stopped because the disk is full: so many bytes have to be free for the next step."""


def plan_compaction(
    packs: Mapping[str, PackIndex],
    needed: set[Digest],
    effort: Effort,
    *,
    epoch: Epoch,
    condemned: Collection[str] = (),
    damaged: Container[str] = (),
) -> CompactionPlan:
    """Plan which of `packs` to replace, those with the largest dead share first.

    `needed` are the blobs that live. `condemned` are packs whose deletion was begun: nothing relies on
    them. A pack is left alone where one of the `damaged` blobs lives in it.
    """
    search = _Search(packs, needed, epoch, condemned, damaged)
    chosen: list[tuple[str, list[PackEntry]]] = []
    written = 0
    found = True
    while found:  # what is copied may make other packs superfluous
        found = False
        for _, name in sorted((-search.weigh(name)[0], name) for name in search.live):
            # Weighed again: since then another pack was chosen.
            dead, copies = search.weigh(name)
            cost = sum(entry.length for entry in copies)
            if dead <= effort.least_dead or (
                effort.most_bytes is not None and written + cost > effort.most_bytes
            ):
                continue
            search.choose(name, copies)
            chosen.append((name, copies))
            written += cost
            found = True
    return CompactionPlan(tuple(_steps(chosen, packs, epoch)))


class _Search:
    """Which packs are candidates still, and how often each live blob lies where it may be relied on."""

    def __init__(
        self,
        packs: Mapping[str, PackIndex],
        needed: set[Digest],
        epoch: Epoch,
        condemned: Collection[str],
        damaged: Container[str],
    ) -> None:
        self._packs = packs
        self._epoch = epoch
        self._condemned = condemned
        self._damaged = damaged
        self._owners: dict[Digest, int] = {}
        self.live: dict[str, dict[Digest, PackEntry]] = {}
        lives = {
            name: needed.intersection([entry.digest for entry in index.entries])
            for name, index in packs.items()
            if 0 < (names.epoch_of(name) or 0) <= epoch
        }
        seen: set[Digest] = set()
        twice: set[Digest] = set()
        for live in lives.values():
            twice |= seen & live
            seen |= live
        for name, live in lives.items():
            entries = packs[name].entries
            if len(live) == len(entries) and twice.isdisjoint(live):
                continue  # all of it lives, and only there: so it is with most of a large run
            self.live[name] = {entry.digest: entry for entry in entries if entry.digest in live}
            if self._is_reliable(name):
                for digest in live:
                    self._owners[digest] = self._owners.get(digest, 0) + 1

    def weigh(self, name: str) -> tuple[float, list[PackEntry]]:
        """Return which share of a pack is dead or lies elsewhere, and what to copy before it may go."""
        itself = 1 if self._is_reliable(name) else 0
        copies = [entry for digest, entry in self.live[name].items() if self._owners.get(digest, 0) <= itself]
        if any(entry.digest in self._damaged for entry in copies):
            return 0.0, copies
        whole = sum(entry.length for entry in self._packs[name].entries)
        return 1 - sum(entry.length for entry in copies) / whole if whole else 1.0, copies

    def choose(self, name: str, copies: Collection[PackEntry]) -> None:
        """Take a pack out; what is copied of it lies in a new one."""
        if self._is_reliable(name):
            for digest in self.live[name]:
                self._owners[digest] -= 1
        for entry in copies:
            self._owners[entry.digest] = 1
        del self.live[name]

    def _is_reliable(self, name: str) -> bool:
        return names.epoch_of(name) == self._epoch and name not in self._condemned


def _steps(
    chosen: Collection[tuple[str, list[PackEntry]]], packs: Mapping[str, PackIndex], epoch: Epoch
) -> Iterator[Step]:
    """Gather packs whose live blobs fit into one new pack."""
    blobs: list[PackEntry] = []
    gone: list[str] = []
    for name, copies in chosen:
        if blobs and sum(entry.raw for entry in (*blobs, *copies)) > PACK_BYTES:
            yield _step(blobs, gone, packs, epoch)
            blobs, gone = [], []
        blobs += copies
        gone.append(name)
    if gone:
        yield _step(blobs, gone, packs, epoch)


def _step(blobs: list[PackEntry], gone: list[str], packs: Mapping[str, PackIndex], epoch: Epoch) -> Step:
    name = names.write_id("0" * names.TOKEN_DIGITS, epoch)
    return Step(
        tuple(entry.digest for entry in blobs),
        tuple(gone),
        pack_bytes(PackIndex(pack=name, entries=blobs)) if blobs else 0,
        sum(pack_bytes(packs[one]) for one in gone),
    )


def compact(
    index: BlobIndex,
    needed: set[Digest],
    effort: Effort,
    *,
    claim: fencing.Claim,
    token: Callable[[], str],
    free: Callable[[ByteStore], int | None] = free_bytes,
) -> Compacted:
    """Replace packs that are mostly dead, as far as `effort` goes. `index` is up to date before and after.

    A full disk ends it early and is no error: everything is as whole as before, and `missing_room` says so.

    Raises:
        Fenced: a later process has claimed the run; nothing is deleted from then on.
        StoreError: the store failed; every blob is still there.
    """
    done = Compacted()
    while True:
        most = effort.most_bytes
        plan = plan_compaction(
            index.packs,
            needed,
            Effort(effort.least_dead, None if most is None else most - done.written),
            epoch=claim.epoch,
            condemned=index.condemned,
            damaged=index.suspect,
        )
        try:
            for step in plan.steps:
                if not _carry_out(step, index, done, claim=claim, token=token, free=free):
                    return done
        except _Damaged as found:
            # Planned anew, without the packs in which it is needed.
            index.suspect.add(Digest(found.fault.digest))
            done.faults.append(found.fault)
            continue
        return done


class _Damaged(Exception):
    """Ends one attempt."""

    def __init__(self, fault: ObjectFault) -> None:
        super().__init__(fault.problem)
        self.fault = fault


def _carry_out(
    step: Step,
    index: BlobIndex,
    done: Compacted,
    *,
    claim: fencing.Claim,
    token: Callable[[], str],
    free: Callable[[ByteStore], int | None],
) -> bool:
    """Write the new pack, then delete the old ones; return False if there is no room for it."""
    store = index.store
    if step.blobs:
        room = free(store)
        if room is not None and room < step.written:
            done.missing_room = step.written
            return False
        name = names.write_id(token(), claim.epoch)
        fencing.check(store, claim)
        try:
            index.add(_write_pack(index, name, step.blobs))
        except StoreFull:
            _discard(index, name, claim)
            done.missing_room = step.written
            return False
        except BaseException:
            _discard(index, name, claim)
            raise
        done.written += step.written
    # Before the first deletion: should one fail, nothing may rely any more on what is half gone.
    index.condemn(step.packs)
    keys = [key for name in step.packs for key in (layout.index(name), layout.pack(name))]
    delete_claimed(store, keys, claim=claim)
    done.packs += step.packs
    done.freed += step.freed
    return True


def _write_pack(index: BlobIndex, name: str, blobs: Collection[Digest]) -> PackIndex:
    writer = pack.PackWriter(name)
    damaged: list[_Damaged] = []

    def entries() -> Iterator[tuple[Digest, int, BlobCodec, Buffer]]:
        for found in read_stored(index, blobs):
            if isinstance(found, ObjectFault):
                damaged.append(_Damaged(found))
                raise damaged[-1]
            yield found.digest, found.size, found.codec, found.content

    def objects() -> Iterator[tuple[str, Content]]:
        yield layout.pack(name), writer.stream(entries())
        yield layout.index(name), pack.encode_index(writer.index())

    try:
        put_all(index.store, objects())
    except BaseException as error:
        if damaged:  # a store may turn what goes wrong with its content into an error of its own
            raise damaged[0] from error
        raise
    return writer.index()


def _discard(index: BlobIndex, name: str, claim: fencing.Claim) -> None:
    """Remove a pack that was not finished, so that a full disk is not kept full by it."""
    index.condemn([name])
    with suppress(StoreError, Fenced):  # what made it fail says more; the next sweep takes what is left
        delete_claimed(index.store, (layout.index(name), layout.pack(name)), claim=claim)

"""Writes checkpoints of one run, one at a time.

Order of a save: packs, their indexes, documents, metadata, manifest, and then the create-only commit
record. Each is durable before the next begins, so a commit record never names anything that a power
loss can take away. Only after that the hint `latest.txt` and the removal of `pending.json`.

A save that fails leaves every earlier commit as it was, removes what it had written, and raises.
Before a commit is acknowledged the epochs are read once more: a process that was overtaken meanwhile
learns it there (`Fenced`) and not from a damaged run. From then on it neither writes nor deletes.

A blob that lies in the run already is not written again, if it may be relied on: it lies in a pack of
this very writer, or a commit that counts names it. A pack that somebody else has left may be deleted
at any moment by its writer.

Invariant: the pen is in one hand. Two writers under one claim, in one process or in two, never work at a
time; each looks at the run anew when it takes the pen.

Not promised: safety for several threads at once. The engine has one save in flight.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import chain

import msgspec

from unbroken.errors import (
    AmbiguousCommit,
    CommitConflict,
    Fenced,
    InternalError,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
)
from unbroken.format import layout, pack
from unbroken.format import manifest as manifests
from unbroken.format import meta as metas
from unbroken.format.buffers import Content
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import Compression
from unbroken.format.digest import digest_of
from unbroken.format.manifest import Manifest, RankPart
from unbroken.format.meta import Meta
from unbroken.format.ranks import RankRecord, SaveOrder, is_vouched_for
from unbroken.format.records import Commit
from unbroken.repo import aside, ballast, collect, compaction, fencing, names, pins
from unbroken.repo.attempt import Attempt, Joint, Written
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed, References, all_blobs
from unbroken.repo.compaction import Compacted
from unbroken.repo.completing import completed
from unbroken.repo.coordinator import Coordinator
from unbroken.repo.encoding import ComponentEncoder, Part, encoders, packs_of, stored_entry
from unbroken.repo.joining import joined, merged, spent_on, together
from unbroken.repo.log import CommitLog, read_log
from unbroken.repo.making_room import Room
from unbroken.repo.packsize import pack_bytes
from unbroken.repo.pen import Pen
from unbroken.repo.reader import Reader
from unbroken.repo.retention import RetentionPlan
from unbroken.repo.saves import SaveLog
from unbroken.repo.seal import seal
from unbroken.state.parts import labelled
from unbroken.state.snapshot import Base, Snapshot
from unbroken.store.base import ByteStore, SupportsLocalPath, SupportsSweep, clear_note, put_all
from unbroken.types import Digest, Epoch, Sequence

_CONFLICTS = 1000
TEMPORARY_SECONDS = 3600.0
"""While a run is being written, a temporary file may belong to another thread of this process."""


class CheckpointWriter:
    """Writes and retains checkpoints of one run, as long as no later epoch was claimed.

    `open` one whenever another has had the pen: what that one has written or deleted is found out there.
    """

    def __init__(
        self,
        store: ByteStore,
        job: str,
        index: BlobIndex,
        pen: Pen,
        *,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
        coordinator: Coordinator | None = None,
    ) -> None:
        self.job = job
        self.epoch = pen.claim.epoch
        self.store = store
        self._coordinator = coordinator
        self.index = index
        self._pen = pen
        self.claim = pen.claim
        self._next = pen.first
        self._compression = compression
        self._clock = clock
        self._token = token
        self._signing_key = signing_key
        self._lists = ChunkLists(index)
        self._references: dict[Digest, References] = {}
        """By the digest of its manifest, what each commit that counts needs, as far as it was looked at."""
        self._elsewhere: dict[Digest, Written] = {}
        """Commits of which other ranks have written chunk lists that were not read yet."""
        self.saved_bytes = 0
        """Of the last save, in packs."""
        self._held = Needed()
        """All blobs that a save may build on: those that they need, but for what is set aside."""
        self._aside = frozenset[Sequence]()
        self._starts: dict[Epoch, Sequence] = {}
        self._pid = os.getpid()
        self._saves = SaveLog(store, pen.claim, index)
        self.room = Room(self)
        self.in_doubt = False
        """Whether the commit record of a save that failed may still appear."""

    @classmethod
    def open(
        cls,
        store: ByteStore,
        job: str,
        pen: Pen,
        *,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
        coordinator: Coordinator | None = None,
        temporary_seconds: float = TEMPORARY_SECONDS,
    ) -> CheckpointWriter:
        """Take the pen: look at what the run holds, and sweep. With a `coordinator`, of several ranks.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        writer = cls(
            store,
            job,
            BlobIndex(store, suspect=pen.suspect, condemned=pen.condemned),
            pen,
            compression=compression,
            clock=clock,
            token=token,
            signing_key=signing_key,
            coordinator=coordinator,
        )
        log = read_log(store, starts=writer._starts)
        writer._next = Sequence(max(pen.first, log.last + 1, fencing.low_water(store)))
        writer._aside = aside.aside(store, log.commits)
        writer.sweep(temporary_seconds=temporary_seconds)
        return writer

    @property
    def size(self) -> int:
        """How many ranks write each checkpoint."""
        return 1 if self._coordinator is None else self._coordinator.size

    @property
    def pen(self) -> Pen:
        """What the next one needs to go on from here."""
        return replace(self._pen, first=self._next)

    def commits(self) -> list[Commit]:
        """Return the commits that count, newest first."""
        return list(self.log().commits)

    def pinned(self) -> dict[Sequence, str]:
        """Return the commits that somebody holds on to, with a reason. Pins whose time is over are deleted.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        now = self._clock()
        pins.sweep(self.store, now=now, claim=self.claim)
        return {**dict.fromkeys(self._aside, aside.REASON), **pins.pinned(self.store, now=now)}

    def aside(self) -> frozenset[Sequence]:
        """Return the commits that are kept and not counted, until a person prunes the run."""
        return self._aside

    def write(self, snapshot: Snapshot, meta: Meta) -> Commit:
        """Write `snapshot` as a checkpoint and return its commit once it is durable and counts.

        What `meta` leaves empty is filled in: job, process, time, bytes, and from the snapshot the
        fidelity, counters and notes.

        Raises:
            StoreError: it could not be written; earlier commits are intact.
            Fenced: a newer process has taken the run over.
            AmbiguousCommit: the store cannot say whether the commit exists.
            RankMissing, ReplicasDiffer: of several ranks some were late, or hold something else.
        """
        with self._encoders(snapshot) as (parts, stored):
            return self.write_parts(parts, self._complete(meta, snapshot), stored)

    def rehearse(self, snapshot: Snapshot, meta: Meta) -> Iterator[Content]:
        """Carry `write` out but for the writing, and yield what it would put; of several ranks, as far as this one's part."""
        meta = self._complete(meta, snapshot)
        attempt, written = Attempt(self.order(meta)), Written()
        with self._encoders(snapshot) as (parts, _):
            for _, data in self._parts(attempt, parts, written):
                yield data
            if (
                self._coordinator is None
            ):  # else the rest cannot be told before the others have said what they have
                for _, data in self._closing(attempt, meta, written, (), sign=False):
                    yield data

    def order(self, meta: Meta) -> SaveOrder:
        """Name the place of a checkpoint of which several processes write parts (`PartWriter`).

        When all of them have, `write_parts` commits it, with what they say. Until then nothing may be
        swept; what has been written for an order that comes to nothing goes with the next sweep.
        """
        write_id = names.write_id(self._token(), self.epoch)
        return SaveOrder(
            step=meta.step,
            segment=meta.segment,
            position=meta.position,
            write_id=write_id,
            directory=layout.checkpoint(meta.step, write_id),
        )

    def write_parts(
        self,
        parts: Collection[Part],
        meta: Meta,
        stored: Collection[Digest],
        *,
        sign: bool = True,
        joint: Joint | None = None,
        ranks: Iterable[RankPart] | None = None,
    ) -> Commit:
        """Write a checkpoint of parts that give their blobs and documents themselves; as `write` otherwise.

        They yield those blobs that `must_write` asks for, and add them to `stored`. `sign` is about
        pickled parts, those of `joint` included: without it nobody vouches for them. `ranks` are those
        that have written the original of a copy: it is whole, and no rank of this run is asked for a part.
        """
        self._check_process()
        order = self.order(meta) if joint is None else joint.order
        coordinator = self._coordinator if ranks is None else None
        attempt = Attempt(order, () if joint is None else joint.records, tuple(ranks or ()), coordinator)
        try:
            commit = self._write(attempt, parts, meta, stored, sign=sign)
        except Exception as error:
            self.in_doubt = self.in_doubt or attempt.in_doubt
            fenced = self._overtaken(error)
            self._discard(attempt, delete=fenced is None)
            if coordinator is not None:
                coordinator.give_up(fenced or error)
            if fenced is not None and fenced is not error:
                raise fenced from error
            raise
        if coordinator is not None:
            coordinator.conclude(commit.sequence)
        # The checkpoint exists now. Both that follow are hints which nobody trusts: to report the save
        # as failed because of them would be wrong, and what is wrong shows at the next save.
        with suppress(StoreError, Fenced):
            fencing.check(self.store, self.claim)
            self.store.put(layout.LATEST, f"{commit.directory}\n".encode())
            fencing.check(self.store, self.claim)
            clear_note(self.store, layout.PENDING)
        return commit

    def record(self, plan: RetentionPlan, *, durable: float | None) -> str:
        """Put the newest checkpoint, which took `durable` seconds, on record before `plan` is carried out; see `SaveLog.add`."""
        return self._saves.add((*plan.kept, *plan.dropped), going=plan.dropped, durable=durable)

    def retain(self, plan: RetentionPlan) -> collect.GcPlan:
        """Delete what the plan does not keep, and leftovers. Commits newer than the plan stay.

        Then packs that are mostly dead are compacted, at a cost that stays below that of the last save.
        """
        self._check_process()
        dropped = {commit.sequence for commit in plan.dropped}
        collected = self._collect(dropped, keep_last=plan.keep_last)
        self._compact(collected, compaction.after_a_save(self.saved_bytes))
        self.room.reserve()
        return collected

    def prune(self, plan: RetentionPlan | None = None) -> tuple[collect.GcPlan, Compacted]:
        """Delete what the plan does not keep (without one, every checkpoint stays) and all that is dead."""
        self._check_process()
        dropped = {commit.sequence for commit in plan.dropped} if plan else frozenset[Sequence]()
        if plan is not None:
            self._saves.warn(self.commits(), going=plan.dropped)
        collected = self._collect(dropped, keep_last=plan.keep_last if plan else None)
        compacted = self._compact(collected, compaction.WHOLE)
        self.room.reserve()
        return collected, compacted

    def sweep(self, *, temporary_seconds: float = TEMPORARY_SECONDS) -> collect.GcPlan:
        """Delete what no commit that counts needs: leftovers of failed saves, and of writers that are over.

        Temporary files of the store go when nobody has touched them for so many seconds.
        """
        self._check_process()
        swept = self._collect(frozenset(), keep_last=None)
        if isinstance(self.store, SupportsSweep):
            fencing.check(self.store, self.claim)
            self.store.sweep(older_than=temporary_seconds)
        return swept

    def chunks(self, base: Base) -> ChunkList:
        """Return the digests of the chunks of a saved array.

        Raises:
            CorruptObject: its chunk list is missing or damaged.
        """
        return self._lists.get(base.name, base.count)

    def _write(
        self,
        attempt: Attempt,
        parts: Collection[Part],
        meta: Meta,
        stored: Collection[Digest],
        *,
        sign: bool,
    ) -> Commit:
        fencing.check(self.store, self.claim)
        written = Written()
        others: list[RankRecord] = []
        if attempt.coordinator is not None:
            attempt.coordinator.order(attempt.order)
            # Durable before the others are asked: where one differs, it compares itself with these.
            put_all(self.store, self._parts(attempt, parts, written))
            others = attempt.coordinator.collect({part.entry.component: part for part in written.parts})
            put_all(self.store, self._closing(attempt, meta, written, others, sign=sign))
        else:
            put_all(
                self.store,
                chain(
                    self._parts(attempt, parts, written),
                    self._closing(attempt, meta, written, others, sign=sign),
                ),
            )
        commit = Commit(
            sequence=self._next,
            step=written.meta.step,
            segment=written.meta.segment,
            epoch=self.epoch,
            write_id=attempt.order.write_id,
            directory=attempt.directory,
            manifest_digest=written.manifest_digest,
            time=written.meta.time,
            good=written.meta.good,
            position=written.meta.position,
            metrics=written.meta.metrics,
            birth=written.meta.birth,
        )
        commit = self._commit(attempt, commit)
        self._saves.saved(commit, written.meta)
        for index in written.indexes:
            self.index.add(index)
        self.saved_bytes = sum(map(pack_bytes, written.indexes))
        self.index.suspect.difference_update(stored)  # those were written anew
        if written.elsewhere:
            self._elsewhere[commit.manifest_digest] = written
        else:
            self._references[commit.manifest_digest] = written.references
            self._held.add(written.references)
        return commit

    def _parts(
        self, attempt: Attempt, parts: Collection[Part], written: Written
    ) -> Iterator[tuple[str, Content]]:
        """Yield what to put first: each pack before its index, then the documents."""
        for blobs in packs_of(parts):
            name = names.write_id(self._token(), self.epoch)
            attempt.written += [layout.pack(name), layout.index(name)]
            attempt.packs.append(name)
            writer = pack.PackWriter(name)
            yield layout.pack(name), writer.stream(map(stored_entry, blobs))
            written.indexes.append(writer.index())
            yield layout.index(name), pack.encode_index(written.indexes[-1])
        written.parts += [part.finish() for part in parts]
        for part in written.parts:
            attempt.written.append(f"{attempt.directory}/{part.file_name}")
            yield attempt.written[-1], part.data

    def _closing(
        self,
        attempt: Attempt,
        meta: Meta,
        written: Written,
        others: Collection[RankRecord],
        *,
        sign: bool,
    ) -> Iterator[tuple[str, Content]]:
        """Yield what to put then: the metadata, and the manifest last."""
        if attempt.coordinator is not None:
            meta = together(meta, others, replicated=attempt.coordinator.replicated)
        meta = msgspec.structs.replace(meta, cost=spent_on(meta.cost, written.parts))
        meta_data = metas.encode(meta)
        encoded = written.parts
        manifest = Manifest(
            job=self.job,
            step=meta.step,
            epoch=self.epoch,
            write_id=attempt.order.write_id,
            meta=digest_of(meta_data),
            documents={part.file_name: part.entry for part in encoded},
            blobs={digest: size for part in encoded for digest, size in part.sizes.items()},
            opaque=sorted(place for part in encoded for place in part.opaque),
            ranks=list(attempt.ranks),
        )
        if attempt.coordinator is not None:
            manifest = merged(manifest, meta, others)
        elif attempt.joined:
            manifest = joined(manifest, attempt.joined)
        key = self._signing_key() if sign and manifest.opaque else None
        # What another rank has pickled is vouched for only if it has the same key.
        if key is not None and all(is_vouched_for(record, key) for record in others if record.opaque):
            manifest = manifests.signed(manifest, key)
        manifest_data = manifests.encode(manifest)
        for file, data in {layout.META: meta_data, layout.MANIFEST: manifest_data}.items():
            attempt.written.append(f"{attempt.directory}/{file}")
            yield attempt.written[-1], data
        written.meta = meta
        written.manifest_digest = digest_of(manifest_data)
        written.references = References(
            frozenset(Digest(digest) for digest in manifest.blobs),
            tuple(chunks for part in encoded for chunks in part.lists),
            frozenset(Digest(part.birth) for part in manifest.ranks if part.birth),
        )
        written.elsewhere = {
            Digest(name): count
            for record in (*others, *attempt.joined)
            for name, count in record.lists.items()
        }

    def must_write(self, digest: Digest) -> bool:
        """Whether a save must write this blob: it lies nowhere where it is sure to stay, or is damaged."""
        if digest in self.index.suspect:
            return True
        packs = {place.pack for place in self.index.places(digest)} - self.index.condemned
        if any(names.epoch_of(pack) == self.epoch for pack in packs):
            return False
        return not packs or digest not in self._held

    def _commit(self, attempt: Attempt, commit: Commit) -> Commit:
        for _ in range(_CONFLICTS):
            fencing.check(self.store, self.claim)
            commit = msgspec.structs.replace(commit, sequence=self._next)
            self._next = Sequence(self._next + 1)
            attempt.in_doubt = True
            if self._publish(attempt, layout.commit(commit.sequence), seal(commit)):
                # Before anybody is told: who claimed the run while the record was being written may
                # not have seen it, and will then not count it.
                fencing.check(self.store, self.claim)
                return commit
            attempt.in_doubt = False
        raise CommitConflict(
            f"No free sequence number was found up to {self._next}.",
            key=layout.commit(commit.sequence),
            epoch=self.epoch,
        )

    def _publish(self, attempt: Attempt, key: str, data: bytes) -> bool:
        """Write the commit record; return whether this number is ours."""
        try:
            return fencing.create_only(self.store, key, data)
        except StoreError as error:
            try:
                self.store.size(key)
            except ObjectMissing:
                # Nothing is there. A store that is full or denies us will also not write it later.
                attempt.in_doubt = not isinstance(error, (StoreFull, StoreDenied))
                raise error from None
            except StoreError:
                pass
            raise AmbiguousCommit(
                f"The store failed while {key} was written and does not say whether it exists.",
                key=key,
                epoch=self.epoch,
            ) from error

    def _overtaken(self, error: Exception) -> Fenced | None:
        """Return that the run is another's, if that is behind a failure: what it needed was swept, say."""
        if isinstance(error, Fenced):
            return error
        if isinstance(error, (StoreError, AmbiguousCommit)):
            try:
                fencing.check(self.store, self.claim)
            except Fenced as fenced:
                return fenced
            except StoreError:
                pass
        return None

    def _discard(self, attempt: Attempt, *, delete: bool) -> None:
        """Remove what a failed save has written, so that a full disk is not kept full by it."""
        self.index.condemn(attempt.packs)
        if attempt.in_doubt or not delete:
            return  # the commit may exist, or the run is another's; the next sweep will know
        for key in reversed(attempt.written):
            try:
                fencing.check(self.store, self.claim)
                self.store.delete(key)
            except (StoreError, Fenced):
                # The save's own error is on its way to the caller and says more; the next sweep of
                # this or of a later process takes what is left.
                return

    def _collect(self, dropped: Collection[Sequence], *, keep_last: int | None) -> collect.GcPlan:
        log = self.log()
        inventory = collect.take_inventory(self.store, log, self.index, self.references_of)
        plan = collect.plan_gc(
            inventory, epoch=self.epoch, drop=dropped, keep_last=keep_last, births=self._pen.births
        )
        # Before the first deletion: should one fail, no later save may build on what is half gone.
        self._references = {
            commit.manifest_digest: self._references[commit.manifest_digest]
            for commit in log.commits
            if commit.manifest_digest in self._references
            and layout.commit(commit.sequence) not in plan.commits
        }
        apart = {c.manifest_digest for c in log.commits if c.sequence in self._aside}
        relied = (found for digest, found in self._references.items() if digest not in apart)
        self._held = plan.needed if plan.needed is not None and not apart else all_blobs(relied)
        self._lists.keep({c.name for found in self._references.values() for c in found.lists})
        self.index.condemn(_packs_of(plan.packs))
        if plan.low_water is not None:
            self._next = max(self._next, plan.low_water)
        # Twice does no harm. A disk without a free byte takes the low-water mark in the place of the ballast.
        ballast.spending(self.store, lambda: collect.execute(self.store, plan, claim=self.claim))
        self.index.refresh()
        return plan

    def _compact(self, collected: collect.GcPlan, effort: compaction.Effort) -> Compacted:
        if collected.needed is None:
            return Compacted()  # what cannot be read may need anything
        return compaction.compact(
            self.index, collected.needed.blobs, effort, claim=self.claim, token=self._token
        )

    def references_of(self, commit: Commit) -> References:
        """Return what a commit needs of the run."""
        known = self._references.get(commit.manifest_digest)
        if known is None and (own := self._elsewhere.pop(commit.manifest_digest, None)) is not None:
            # Not before somebody asks: the ranks need not wait for it.
            self.index.refresh()
            lists = tuple(self._lists.get(name, count) for name, count in own.elsewhere.items())
            known = replace(own.references, lists=(*own.references.lists, *lists))
            self._references[commit.manifest_digest] = known
        if known is None:
            reader = Reader(self.store, self.index, commit)
            apart = commit.sequence in self._aside
            known = reader.readable(self._lists) if apart else reader.references(self._lists)
            self._references[commit.manifest_digest] = known
        return known

    def log(self) -> CommitLog:
        """Read which commits count."""
        return read_log(self.store, starts=self._starts)

    def _encoders(
        self, snapshot: Snapshot
    ) -> AbstractContextManager[tuple[list[ComponentEncoder], set[Digest]]]:
        if self._coordinator is not None:
            # Facts are taken before: rank 0 states its own as the others do.
            snapshot = labelled(snapshot, 0, replicated=self._coordinator.replicated)
        return encoders(
            snapshot,
            self.must_write,
            fmt=self._pen.document_format,
            lists=self._lists,
            compression=self._compression,
            on_disk=isinstance(self.store, SupportsLocalPath),
        )

    def _complete(self, meta: Meta, snapshot: Snapshot) -> Meta:
        return completed(meta, snapshot, job=self.job, owner=self._pen.owner, now=self._clock())

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise InternalError(
                "A forked child used its parent's writer.",
                hint="Only the process that opened a run writes to it.",
            )


def _packs_of(keys: Iterable[str]) -> set[str]:
    return {name for key in keys if (name := layout.pack_name(key)) is not None}

"""Writes what one rank has of a checkpoint that the coordinator commits.

The order of things is that of `writer`: packs, indexes, documents, and then a record, here that of the rank.
What must be the same on every rank is digested and not written: rank 0 does that.

A blob is not written again if the newest commit that this rank knows of needs it, and on no other ground: packs
of a save that came to nothing may be swept at any moment after it. Nothing is ever deleted here.

Not promised: that a checkpoint exists when a part of it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from unbroken.errors import Fenced, InternalError, RankMissing, ReplicasDiffer, SaveFailed, UnbrokenError
from unbroken.format import layout, pack, ranks
from unbroken.format.buffers import Content
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat, Manifest
from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.format.ranks import Doubt, Finding, Outcome, RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo import fencing, names
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed, References
from unbroken.repo.encoding import ComponentEncoder, EncodedComponent, packs_of, stored_entry
from unbroken.repo.joining import status_of
from unbroken.repo.log import read_log
from unbroken.repo.pipeline import Pipeline
from unbroken.repo.process import Process
from unbroken.repo.reader import Reader
from unbroken.repo.rendezvous import WRITING, Rendezvous, missing
from unbroken.repo.retention import RetentionPlan
from unbroken.state.diff import compare
from unbroken.state.parts import labelled
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.base import children, put_all
from unbroken.types import Digest, Sequence

MOST_FINDINGS = 5
"""So many differing leaves a rank names; the first one is what a person looks at."""


@dataclass(slots=True)
class _Written:
    """What one order has come to on this rank."""

    documents: list[EncodedComponent] = field(default_factory=list[EncodedComponent])
    replicas: list[EncodedComponent] = field(default_factory=list[EncodedComponent])

    @property
    def references(self) -> References:
        """What its own part needs in packs, and what replicas need, which rank 0 has written."""
        parts = [*self.documents, *self.replicas]
        return References(
            frozenset(digest for part in parts for digest in part.sizes),
            tuple(chunks for part in parts for chunks in part.lists),
        )


class RankWriter:
    """Writes parts of checkpoints, one order at a time; used as a `CheckpointWriter` by one who saves."""

    def __init__(
        self,
        meeting: Rendezvous,
        *,
        job: str,
        rank: int,
        replicated: frozenset[str],
        owner: Process,
        document_format: DocumentFormat,
        compression: Compression,
        token: Callable[[], str],
    ) -> None:
        self.job = job
        self.rank = rank
        self._meeting = meeting
        self._replicated = replicated
        self._owner = owner
        self._document_format: DocumentFormat = document_format
        self._compression = compression
        self._token = token
        self._index = BlobIndex(meeting.store)
        self._lists = ChunkLists(self._index)
        self._held = Needed()
        self._done = 0
        """The last order that this rank has seen through, or passed over."""

    @property
    def lists(self) -> ChunkLists:
        """The chunk lists of the run, as this rank reads and writes them."""
        return self._lists

    def build_on(self, commit: Commit, components: Collection[str]) -> None:
        """Rely on what a commit holds of these components: it was restored."""
        self._index.refresh()
        self._held = Needed()
        self._held.add(Reader(self._meeting.store, self._index, commit).references(self._lists, components))

    def write(self, snapshot: Snapshot, meta: Meta) -> None:
        """Write what this rank has of the snapshot, and return when the checkpoint of all ranks is committed.

        Raises:
            StoreError: it could not be written.
            RankMissing: another rank was not there in time, or the coordinator gave no order.
            ReplicasDiffer: this or another rank has something else than rank 0.
            SaveFailed: the coordinator has given the checkpoint up.
            Fenced: a newer process has taken the run over.
        """
        place, order = self._await_order(meta)
        try:
            written, record = self._write(order, snapshot, meta)
        except Fenced:
            raise
        except Exception as error:
            reason = error.message if isinstance(error, UnbrokenError) else f"{type(error).__name__}: {error}"
            with suppress(UnbrokenError):  # the coordinator is spared its timeout, where it can be told
                self._meeting.say(ranks.of_rank(place, self.rank), self._refusal(order, reason))
            raise
        self._meeting.say(ranks.of_rank(place, self.rank), record)
        try:
            self._await_outcome(place, order, snapshot)
        except RankMissing:
            self._held = Needed()  # it may be committed after all, and what it replaces may be gone
            raise
        self._held = Needed()
        self._held.add(written.references)
        self._lists.keep({chunks.name for chunks in written.references.lists})

    def commits(self) -> list[Commit]:
        """Return nothing: which checkpoints stay is for the coordinator to plan."""
        return []

    def pinned(self) -> dict[Sequence, str]:
        """Return nothing, as `commits`."""
        return {}

    def retain(self, plan: RetentionPlan) -> None:
        """Delete nothing: only the coordinator deletes."""

    def _await_order(self, meta: Meta) -> tuple[str, SaveOrder]:
        meeting = self._meeting

        def look() -> tuple[int, SaveOrder] | None:
            for number in self._orders():
                place = ranks.save(meeting.epoch, number)
                order = meeting.hear(f"{place}/order.json", SaveOrder)
                if order is None:
                    self._heed_untold(place, meta)
                    continue  # it is being written, or could not be, and then another one follows
                if _is(order, meta):
                    return number, order
                if order.step > meta.step:
                    raise SaveFailed(
                        f"Rank 0 saves step {order.step:,} and rank {self.rank} is at step {meta.step:,}.",
                        hint="Every rank has to save at the same steps.",
                    )
                self._pass_over(number, order, meta)
            # Nothing is there, or nothing new: whether the run is ours still has to be looked at.
            meeting.hear(f"{ranks.save(meeting.epoch, self._done + 1)}/order.json", SaveOrder)
            return None

        found = meeting.patience.until(look, seconds=meeting.timeout)
        if found is None:
            raise RankMissing(
                f"Rank 0 did not begin to save step {meta.step:,} within {meeting.timeout:g} seconds.",
                hint="Look at what rank 0 is doing; allow more time with sync_timeout if it was only slow.",
                ranks=(0,),
            )
        self._done = found[0]
        return ranks.save(meeting.epoch, found[0]), found[1]

    def _heed_untold(self, place: str, meta: Meta) -> None:
        """Raise what tells that rank 0 has given up this very save before it could give the order."""
        outcome = self._meeting.hear(f"{place}/outcome.json", Outcome)
        if outcome is not None and outcome.order is not None and _is(outcome.order, meta):
            raise _given_up(outcome, meta.step)

    def _orders(self) -> list[int]:
        place = ranks.saves(self._meeting.epoch)
        numbers = [int(name) for name in children(self._meeting.store, place) if name.isdigit()]
        return sorted(number for number in numbers if number > self._done)

    def _pass_over(self, number: int, order: SaveOrder, meta: Meta) -> None:
        """Tell that this rank cannot follow an order any more: the step is over."""
        reason = f"it has gone on to step {meta.step:,} without step {order.step:,}"
        place = ranks.save(self._meeting.epoch, number)
        self._meeting.say(ranks.of_rank(place, self.rank), self._refusal(order, reason))
        self._done = number

    def _write(self, order: SaveOrder, snapshot: Snapshot, meta: Meta) -> tuple[_Written, RankRecord]:
        self._index.refresh()
        store, written = self._meeting.store, _Written()
        parts = labelled(snapshot, self.rank, replicated=self._replicated)
        own = [part for name, part in parts.components.items() if name not in self._replicated]
        same = [part for name, part in parts.components.items() if name in self._replicated]
        with Pipeline(self._compression, lambda _: False) as pipeline:
            for component in same:
                encoder = self._encoder(component, pipeline, set())
                for _ in encoder.blobs():
                    raise InternalError("A replicated component was about to be written.")
                written.replicas.append(encoder.finish())
        with Pipeline(self._compression, self._must_write, live=snapshot.is_live) as pipeline:
            stored: set[Digest] = set()
            encoders = [self._encoder(component, pipeline, stored) for component in own]
            for one, other in pairwise(encoders):
                one.following = other
            put_all(store, self._objects(order, encoders, written))
        self._index.suspect.difference_update(stored)
        return written, self._record(order, parts, meta, written)

    def _encoder(self, component: Component, pipeline: Pipeline, stored: set[Digest]) -> ComponentEncoder:
        return ComponentEncoder(component, self._document_format, self._lists, pipeline, stored)

    def _must_write(self, digest: Digest) -> bool:
        if digest in self._index.suspect or digest not in self._held:
            return True
        return not self._index.places(digest)

    def _objects(
        self, order: SaveOrder, encoders: Collection[ComponentEncoder], written: _Written
    ) -> Iterator[tuple[str, Content]]:
        meeting = self._meeting
        for blobs in packs_of(encoders):
            fencing.check(meeting.store, meeting.claim)
            name = names.write_id(self._token(), meeting.epoch)
            writer = pack.PackWriter(name)
            yield layout.pack(name), writer.stream(map(stored_entry, blobs))
            yield layout.index(name), pack.encode_index(writer.index())
        written.documents += [encoder.finish() for encoder in encoders]
        for part in written.documents:
            yield f"{order.directory}/{part.file_name}", part.data

    def _record(self, order: SaveOrder, parts: Snapshot, meta: Meta, written: _Written) -> RankRecord:
        owner = self._owner
        return RankRecord(
            job=self.job,
            pid=owner.pid,
            process_start=owner.start,
            host=owner.host,
            boot_id=owner.boot_id,
            time=meta.time,
            rank=self.rank,
            step=order.step,
            write_id=order.write_id,
            documents={part.file_name: part.entry for part in written.documents},
            blobs={digest: size for part in written.documents for digest, size in part.sizes.items()},
            opaque=sorted(place for part in written.documents for place in part.opaque),
            agree={part.entry.component: part.entry.digest for part in written.replicas},
            birth=meta.birth,
            good=meta.good,
            nbytes=sum(
                part.nbytes for name, part in parts.components.items() if name not in self._replicated
            ),
            status=status_of(meta),
            fidelity={
                name: ComponentFidelity(promise.fidelity, promise.reason)
                for name, promise in parts.promises.items()
                if name not in self._replicated
            },
            notes=meta.notes,
        )

    def _refusal(self, order: SaveOrder, reason: str) -> RankRecord:
        return RankRecord(
            job=self.job, pid=self._owner.pid, host=self._owner.host,
            rank=self.rank, step=order.step, write_id=order.write_id, refusal=reason,
        )  # fmt: skip

    def _await_outcome(self, place: str, order: SaveOrder, snapshot: Snapshot) -> None:
        meeting = self._meeting

        def hear_outcome() -> Outcome | None:
            return meeting.hear(f"{place}/outcome.json", Outcome)

        def hear() -> tuple[Outcome | None, Doubt | None] | None:
            outcome = hear_outcome()
            doubt = None if outcome is not None else meeting.hear(f"{place}/doubt.json", Doubt)
            return (outcome, doubt) if outcome is not None or doubt is not None else None

        outcome, doubt = meeting.patience.until(hear, seconds=meeting.timeout) or (None, None)
        if doubt is not None:
            if self.rank in doubt.ranks:
                self._say_where(place, order, doubt, snapshot)
            # Rank 0 in turn waits for others to say where, and speaks when that time is over.
            outcome = meeting.patience.until(hear_outcome, seconds=2 * meeting.timeout)
        if outcome is None:
            if self._is_committed(order):
                return  # and rank 0 could not say so
            raise self._no_outcome(place, order)
        if outcome.differing:
            raise ReplicasDiffer(outcome.reason, differences=outcome.differing)
        if not outcome.sequence:
            raise _given_up(outcome, order.step)

    def _is_committed(self, order: SaveOrder) -> bool:
        return any(commit.write_id == order.write_id for commit in read_log(self._meeting.store).commits)

    def _no_outcome(self, place: str, order: SaveOrder) -> RankMissing:
        """Return the error of a save that does not end. Rank 0 is not to blame where it waits for others: it
        began to do so later than this rank, and has not given up yet."""
        meeting = self._meeting
        there = {ranks.rank_of(name) for name in children(meeting.store, place)}
        late = [rank for rank in range(1, meeting.size) if rank not in there]
        if late:
            return missing(late, doing=WRITING, seconds=meeting.timeout)
        return RankMissing(
            f"Rank 0 did not say within {meeting.timeout:g} seconds whether the checkpoint of step"
            f" {order.step:,} is committed.",
            hint="Look at what rank 0 is doing; `unbroken ls` shows what is committed.",
            ranks=(0,),
        )

    def _say_where(self, place: str, order: SaveOrder, doubt: Doubt, snapshot: Snapshot) -> None:
        """Compare what rank 0 has written with one's own, and name the first places that differ."""
        self._index.refresh()
        draft = Manifest(
            job=self.job, step=order.step, epoch=self._meeting.epoch, write_id=order.write_id,
            meta=Digest(f"b3:{'0' * 64}"), documents=doubt.documents, blobs=doubt.blobs,
        )  # fmt: skip
        stub = Commit(
            sequence=Sequence(1), step=order.step, write_id=order.write_id, directory=order.directory,
            manifest_digest=draft.meta,
        )  # fmt: skip
        theirs = Reader(self._meeting.store, self._index, stub, draft=draft).read(None)
        mine = Snapshot(
            {name: part for name, part in snapshot.components.items() if name in self._replicated}
        )
        names_in_doubt = {entry.component for entry in doubt.documents.values()}
        found = [
            d
            for d in compare(theirs, mine)
            if d.component in names_in_doubt or d.component not in theirs.components
        ]
        lines = [f"{d.component}: {d}" for d in found[:MOST_FINDINGS]]
        if len(found) > MOST_FINDINGS:
            lines.append(f"and {len(found) - MOST_FINDINGS} more values")
        if not found:
            lines.append("the documents differ, and no value in them does")
        self._meeting.say(
            ranks.of_rank(f"{place}/finding", self.rank), Finding(rank=self.rank, differences=lines)
        )


def _given_up(outcome: Outcome, step: int) -> SaveFailed:
    return SaveFailed(
        f"The checkpoint of step {step:,} was given up by rank 0: {outcome.reason}",
        hint="Checkpoints committed before it are intact.",
    )


def _is(order: SaveOrder, meta: Meta) -> bool:
    return (order.segment, order.step, order.position) == (meta.segment, meta.step, meta.position)

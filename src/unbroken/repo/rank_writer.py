"""Writes what one rank has of a checkpoint that the coordinator commits, when it orders one.

First the rank's part (`part_writer`), and then a record that it is durable. What must be the same on every rank
is digested and not written: rank 0 does that.

A blob is not written again if the newest commit that this rank knows of needs it: what the last save that came
to its end has written, or what was restored. Nothing is ever deleted here.

Not promised: that a checkpoint exists when a part of it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from unbroken.errors import (
    CorruptObject,
    Fenced,
    RankMissing,
    ReplicasDiffer,
    SaveFailed,
    StoreError,
    StoreFull,
    UnbrokenError,
)
from unbroken.format import ranks
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat, Manifest
from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.format.ranks import Doubt, Finding, Outcome, RankRecord, SaveOrder
from unbroken.format.records import Commit, Position
from unbroken.repo.ballast import spending
from unbroken.repo.chunklists import ChunkLists, References
from unbroken.repo.coordinator import reason_of
from unbroken.repo.encoding import EncodedComponent
from unbroken.repo.joining import spent_on, status_of
from unbroken.repo.log import read_log
from unbroken.repo.part_writer import PartWriter, record_of
from unbroken.repo.process import Process
from unbroken.repo.reader import Reader
from unbroken.repo.rendezvous import WRITING, Rendezvous, missing
from unbroken.repo.retention import RetentionPlan
from unbroken.state.diff import compare
from unbroken.state.parts import labelled, rank_name
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import children
from unbroken.types import Digest, Sequence

REFUSAL_SECONDS = 10.0
"""So long a rank that has nothing to write waits for the order, to say so. Ranks come to a save at about the same
time, so the order is there, or about to come."""

MOST_FINDINGS = 5
"""So many differing leaves a rank names; the first one is what a person looks at."""


_Moment: TypeAlias = tuple[int, int, Position]
"""Segment, step and position: by these a rank knows the order to the save that it makes."""


@dataclass(slots=True)
class _Written:
    """What one order has come to on this rank."""

    documents: list[EncodedComponent] = field(default_factory=list[EncodedComponent])
    replicas: list[EncodedComponent] = field(default_factory=list[EncodedComponent])

    @property
    def references(self) -> References:
        """What its own part needs in packs. Of replicas rank 0 has written everything."""
        return References(
            frozenset(digest for part in self.documents for digest in part.sizes),
            tuple(chunks for part in self.documents for chunks in part.lists),
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
        signing_key: Callable[[], bytes | None],
    ) -> None:
        self._signing_key = signing_key
        self.job = job
        self.rank = rank
        self._meeting = meeting
        self._replicated = replicated
        self._owner = owner
        self._parts = PartWriter(
            meeting.store,
            meeting.claim,
            document_format=document_format,
            compression=compression,
            token=token,
        )
        self._done = 0
        """The last order that this rank has seen through, or passed over."""
        self._missed: list[_Moment] = []
        """Saves that rank 0 did not begin in time. Their orders may still come, and are not those of a later save
        that has the same step: parts of two moments never go together."""

    @property
    def lists(self) -> ChunkLists:
        """The chunk lists of the run, as this rank reads and writes them."""
        return self._parts.lists

    def build_on(self, commit: Commit, components: Collection[str]) -> bool:
        """Rely on what a commit holds of these components: it was restored. Return whether that can be told;
        where it cannot, nothing is relied on, and the next save has to have everything.
        """
        try:
            self._parts.build_on(commit, components)
        except (CorruptObject, StoreError):
            self._parts.rely_on_nothing()
            return False
        return True

    def write(self, snapshot: Snapshot, meta: Meta) -> None:
        """Write what this rank has of the snapshot, and return when the checkpoint of all ranks is committed.

        Raises:
            StoreError: it could not be written.
            RankMissing: another rank was not there in time, or the coordinator gave no order.
            ReplicasDiffer: this or another rank has something else than rank 0.
            SaveFailed: the coordinator has given the checkpoint up, or it cannot be told whether it is committed.
            Fenced: a newer process has taken the run over.
        """
        place, order = self._await_order(meta)
        try:
            written, record = self._write(order, snapshot, meta)
        except Fenced:
            raise
        except Exception as error:
            with suppress(UnbrokenError):  # the coordinator is spared its timeout, where it can be told
                refusal = self._refusal(order, reason_of(error), full=isinstance(error, StoreFull))
                spending(
                    self._meeting.store, lambda: self._meeting.say(ranks.of_rank(place, self.rank), refusal)
                )
            raise
        try:
            self._meeting.say(ranks.of_rank(place, self.rank), record)
            given_up = self._await_outcome(place, order, snapshot)
        except StoreError as error:
            self._parts.rely_on_nothing()
            raise SaveFailed(
                f"It cannot be told whether the checkpoint of step {order.step:,} is committed: {error.message}",
                hint="`unbroken ls` shows what is committed; the next save writes everything anew.",
            ) from error
        except BaseException:
            # From the record on it may be committed, and what it replaces be gone, whatever happens here.
            self._parts.rely_on_nothing()
            raise
        if given_up is not None:
            raise given_up
        self._parts.rely_on(
            written.references, lists=[chunks for part in written.replicas for chunks in part.lists]
        )

    def refuse(self, meta: Meta, reason: str) -> None:
        """Answer the order to save this step, when it comes, with why there is nothing of this rank.

        Raises:
            RankMissing: it does not come in time.
        """
        # Not as long as for a save: whoever ends with this error waits for it.
        place, order = self._await_order(meta, seconds=min(REFUSAL_SECONDS, self._meeting.timeout))
        self._meeting.say(ranks.of_rank(place, self.rank), self._refusal(order, reason))

    @property
    def room(self) -> None:
        """None: a rank deletes nothing."""
        return

    def commits(self) -> list[Commit]:
        """Return nothing: which checkpoints stay is for the coordinator to plan."""
        return []

    def pinned(self) -> dict[Sequence, str]:
        """Return nothing, as `commits`."""
        return {}

    def aside(self) -> frozenset[Sequence]:
        """Return nothing, as `commits`."""
        return frozenset()

    def record(self, plan: RetentionPlan, *, durable: float | None) -> str:
        """Put nothing on record: the coordinator does."""
        return ""

    def retain(self, plan: RetentionPlan) -> None:
        """Delete nothing: only the coordinator deletes."""

    def _await_order(self, meta: Meta, *, seconds: float | None = None) -> tuple[str, SaveOrder]:
        meeting = self._meeting
        seconds = meeting.timeout if seconds is None else seconds

        def look() -> tuple[int, SaveOrder] | None:
            for number in self._orders():
                place = ranks.save(meeting.epoch, number)
                order = meeting.hear(f"{place}/order.json", SaveOrder)
                if order is None:
                    self._heed_untold(number, meta)
                    continue  # it is being written, or could not be, and then another one follows
                if _moment(order) in self._missed:
                    self._missed.remove(_moment(order))
                    self._pass_over(number, order, meta)
                    continue
                if _moment(order) == _moment(meta):
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

        found = meeting.patience.until(
            look, seconds=seconds, why=lambda: f"rank {self.rank} waits for rank 0 to save step {meta.step:,}"
        )
        if found is None:
            self._missed.append(_moment(meta))
            raise RankMissing(
                f"Rank 0 did not begin to save step {meta.step:,} within {seconds:g} seconds.",
                hint="Look at what rank 0 is doing; allow more time with sync_timeout if it was only slow.",
                ranks=(0,),
            )
        self._done = found[0]
        self._missed.clear()  # orders come in their order
        return ranks.save(meeting.epoch, found[0]), found[1]

    def _heed_untold(self, number: int, meta: Meta) -> None:
        """Raise what tells that rank 0 has given up this very save before it could give the order."""
        place = ranks.save(self._meeting.epoch, number)
        outcome = self._meeting.hear(f"{place}/outcome.json", Outcome)
        if outcome is None or outcome.order is None:
            return
        if _moment(outcome.order) in self._missed:
            self._missed.remove(_moment(outcome.order))
            self._done = number
        elif _moment(outcome.order) == _moment(meta):
            self._done = number  # the next save may have the same step
            raise _given_up(outcome, meta.step)

    def _orders(self) -> list[int]:
        place = ranks.saves(self._meeting.epoch)
        numbers = [int(name) for name in children(self._meeting.store, place) if name.isdigit()]
        return sorted(number for number in numbers if number > self._done)

    def _pass_over(self, number: int, order: SaveOrder, meta: Meta) -> None:
        """Tell that this rank cannot follow an order any more: the step is over."""
        reason = f"it has gone on to {_name_of(meta)} without {_name_of(order)}"
        place = ranks.save(self._meeting.epoch, number)
        self._meeting.say(ranks.of_rank(place, self.rank), self._refusal(order, reason))
        self._done = number

    def _write(self, order: SaveOrder, snapshot: Snapshot, meta: Meta) -> tuple[_Written, RankRecord]:
        self._parts.look_again()
        parts = labelled(snapshot, self.rank, replicated=self._replicated)
        own = [part for name, part in parts.components.items() if name not in self._replicated]
        same = [part for name, part in parts.components.items() if name in self._replicated]
        written = _Written(replicas=self._parts.digested(same))
        written.documents = self._parts.write(own, order.directory, live=snapshot.is_live)
        return written, self._record(order, parts, meta, written)

    def _record(self, order: SaveOrder, parts: Snapshot, meta: Meta, written: _Written) -> RankRecord:
        own = [part for name, part in parts.components.items() if name not in self._replicated]
        record = record_of(
            written.documents,
            order,
            rank=self.rank,
            job=self.job,
            owner=self._owner,
            time=meta.time,
            nbytes=sum(part.nbytes for part in own),
        )
        record = msgspec.structs.replace(
            record,
            agree={part.entry.component: part.entry.digest for part in written.replicas},
            birth=meta.birth,
            good=meta.good,
            status=status_of(meta),
            fidelity={
                name: ComponentFidelity(promise.fidelity, promise.reason)
                for name, promise in parts.promises.items()
                if name not in self._replicated
            },
            cost=spent_on(
                {
                    rank_name(name, self.rank): cost
                    for name, cost in meta.cost.items()
                    if name not in self._replicated
                },
                written.documents,
            ),
            notes=meta.notes,
        )
        key = self._signing_key() if record.opaque else None
        return record if key is None else ranks.signed(record, key)

    def _refusal(self, order: SaveOrder, reason: str, *, full: bool = False) -> RankRecord:
        return RankRecord(
            job=self.job, pid=self._owner.pid, host=self._owner.host,
            rank=self.rank, step=order.step, write_id=order.write_id, refusal=reason,
            full=full,
        )  # fmt: skip

    def _await_outcome(
        self, place: str, order: SaveOrder, snapshot: Snapshot
    ) -> ReplicasDiffer | SaveFailed | None:
        """Wait until the checkpoint is committed, and return None; or the error that says why it never will be."""
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
                return None  # and rank 0 could not say so
            raise self._no_outcome(place, order)
        if outcome.differing:
            return ReplicasDiffer(outcome.reason, differences=outcome.differing)
        return None if outcome.sequence else _given_up(outcome, order.step)

    def _is_committed(self, order: SaveOrder) -> bool:
        return any(commit.write_id == order.write_id for commit in read_log(self._meeting.store).commits)

    def _no_outcome(self, place: str, order: SaveOrder) -> RankMissing:
        """Return the error of a save that does not end. Rank 0 is not to blame where it waits for others: it
        began to do so later than this rank, and has not given up yet."""
        meeting = self._meeting
        there = {ranks.rank_of(name) for name in children(meeting.store, place)}
        late = [rank for rank in range(1, meeting.size) if rank not in there]
        if late:
            return missing(late, doing=WRITING, within=meeting.limit)
        return RankMissing(
            f"Rank 0 did not say within {meeting.timeout:g} seconds whether the checkpoint of step"
            f" {order.step:,} is committed.",
            hint="Look at what rank 0 is doing; `unbroken ls` shows what is committed.",
            ranks=(0,),
        )

    def _say_where(self, place: str, order: SaveOrder, doubt: Doubt, snapshot: Snapshot) -> None:
        """Compare what rank 0 has written with one's own, and name the first places that differ."""
        self._parts.index.refresh()
        draft = Manifest(
            job=self.job, step=order.step, epoch=self._meeting.epoch, write_id=order.write_id,
            meta=Digest(f"b3:{'0' * 64}"), documents=doubt.documents, blobs=doubt.blobs,
        )  # fmt: skip
        stub = Commit(
            sequence=Sequence(1), step=order.step, write_id=order.write_id, directory=order.directory,
            manifest_digest=draft.meta,
        )  # fmt: skip
        theirs = Reader(self._meeting.store, self._parts.index, stub, draft=draft).read(None)
        mine = Snapshot(
            {name: part for name, part in snapshot.components.items() if name in doubt.components}
        )
        found = compare(theirs, mine)
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


def _moment(of: SaveOrder | Meta) -> _Moment:
    return of.segment, of.step, of.position


def _name_of(of: SaveOrder | Meta) -> str:
    return f"step {of.step:,}" if of.position == "step" else f"the {of.position} at step {of.step:,}"

"""A rank that takes part in a run which rank 0 writes: how it joins, and what it may do.

It stands in the place of a `RunWriter`: what concerns the run as a whole (lock, pending record, history) is
rank 0's, and does nothing here. To join is to answer the newest epoch: a rank that comes before rank 0 meets
the epoch of a former start, waits in vain there, and joins the next one as soon as that is claimed.

Not promised: that a second process of the same rank is kept out before it matters. It is told when it joins.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from unbroken.errors import ObjectMissing, RankMissing, StoreUnavailable
from unbroken.format import layout, ranks, wire
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.format.ranks import Admission, Ballot, Hello, Proposal, Verdict
from unbroken.format.records import Commit, HistoryRecord
from unbroken.repo import birth, fencing, keys, names
from unbroken.repo.coordinator import Ranks
from unbroken.repo.lock import read_lease
from unbroken.repo.log import read_commit
from unbroken.repo.process import Process
from unbroken.repo.rank_writer import RankWriter
from unbroken.repo.rendezvous import AGREEING, Limit, Rendezvous, read
from unbroken.repo.seal import seal
from unbroken.state.snapshot import Base, Snapshot
from unbroken.store.base import ByteStore, say
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId


def _token() -> str:
    return secrets.token_hex(names.TOKEN_DIGITS // 2)


class Follower:
    """One rank but the first. Comes from `join`."""

    def __init__(self, meeting: Rendezvous, writer: RankWriter, *, job: str, start: Limit) -> None:
        self.job = job
        self.rank = writer.rank
        self.checkpoints = writer
        """What writes its parts of checkpoints."""
        self._meeting = meeting
        self._start_limit = start
        self._heard = 0
        """So many proposals have come."""
        self._answered = 0
        """The last one that this rank has said something to."""

    @property
    def epoch(self) -> Epoch:
        return self._meeting.epoch

    # From where to go on

    def proposal(self) -> Proposal:
        """Wait for the coordinator's next proposal.

        Raises:
            RankMissing: it does not come in time.
            Fenced: the run was taken over.
        """
        found = self._await_start(self._heard + 1, "proposal.json", Proposal)
        self._heard += 1
        return found

    def commit(self, sequence: Sequence) -> Commit | None:
        """Return the record of a commit that rank 0 sees; None if it does not show here in time.

        It is asked for by its name: a listing may lag behind, and what another machine has written may, too.

        Raises:
            CorruptObject: the record is damaged.
        """
        # Rank 0 waits for the answer, and must still have time to hear it.
        seconds = min(self._meeting.timeout, self._start_limit.seconds / 2)

        def look() -> Commit | None:
            with suppress(ObjectMissing):
                return read_commit(self._meeting.store, layout.commit(sequence))
            return None

        return self._meeting.patience.until(look, seconds=seconds)

    def vote(self, ballot: Ballot) -> None:
        """Say what this rank thinks of the proposal; before one has come, of the next one, whatever it will be."""
        number = max(self._heard, self._answered + 1)
        self._meeting.say(ranks.of_rank(ranks.start(self.epoch, number), self.rank), ballot)
        self._answered = number

    def leave(self, ballot: Ballot) -> None:
        """Vote, and take no further part: it stands for whatever else has been proposed meanwhile."""
        self.vote(ballot)
        # Rank 0 in turn looks back at such a word when it has decided to propose something else.
        while True:
            place = ranks.start(self.epoch, self._answered)
            verdict = self._meeting.hear(f"{place}/verdict.json", Verdict)
            if verdict is None or verdict.decision != "next":
                return
            self.vote(ballot)

    def verdict(self) -> Verdict:
        """Wait for what becomes of the proposal."""
        return self._await_start(self._heard, "verdict.json", Verdict)

    def _await_start(self, number: int, name: str, kind: type[wire.R]) -> wire.R:
        return self._meeting.await_word(
            f"{ranks.start(self.epoch, number)}/{name}", kind, doing=AGREEING, within=self._start_limit
        )

    # In the place of a RunWriter

    def chunks(self, base: Base) -> ChunkList:
        """Return the digests of the chunks of a saved array."""
        return self.checkpoints.lists.get(base.name, base.count)

    def write_birth(self, skeleton: Snapshot, *, segment: int = 0) -> Digest:
        """Write a birth document and return its name; the commits that this rank has part in will name it."""
        fencing.check(self._meeting.store, self._meeting.claim)
        name, data = birth.encode(skeleton, job=self.job, segment=segment)
        self._meeting.store.put(layout.birth(name), data)
        return name

    def mark_pending(self, step: Step, reason: str, *, segment: int = 0) -> None:
        """Rank 0 records it for all."""

    def record_workers(self, workers: Iterable[Process]) -> None:
        """Nothing: the record is that of rank 0's own processes."""

    def append_history(self, record: HistoryRecord) -> None:
        """Rank 0 writes the history."""

    def lose_pen(self) -> None:
        """It never has it."""

    def close(self) -> None:
        """There is nothing to give back."""


@dataclass(slots=True)
class _Knock:
    """A rank that wants to take part."""

    store: ByteStore
    job: str
    rank: int
    size: int
    owner: Process
    nonce: str
    said: dict[Epoch, bool] = field(default_factory=dict[Epoch, bool])
    """Epochs in which the rank's place was asked for; False where somebody else has it."""

    def look(self) -> Admission | None:
        """Answer the newest epoch, and return an admission that names this very process.

        Raises:
            RankMissing: rank 0 has taken in nobody, because of this rank or of another one.
        """
        newest = fencing.highest(self.store)
        if newest and newest not in self.said:
            key = ranks.hello(newest, self.rank)
            try:
                self.said[newest] = fencing.create_only(self.store, key, seal(self._hello(newest)), put=say)
            except StoreUnavailable:
                return None  # rank 0 tidies up the run meanwhile; it is said at the next look
        for epoch, ours in self.said.items():
            if ours and epoch == newest:
                found = read(self.store, ranks.admission(epoch), Admission)
                if found is not None and self._is_named_in(found):
                    if found.refusal:
                        raise RankMissing(
                            f"Rank 0 has not begun. {found.refusal}",
                            hint="Remove the cause, then start all ranks, with the same root, job and number of them.",
                            ranks=found.ranks,
                        )
                    return found
        return None

    def _hello(self, epoch: Epoch) -> Hello:
        owner = self.owner
        return Hello(
            job=self.job, **owner.as_owner(),
            epoch=epoch, rank=self.rank, world_size=self.size, nonce=self.nonce,
        )  # fmt: skip

    def _is_named_in(self, admission: Admission) -> bool:
        return len(admission.nonces) >= self.rank and admission.nonces[self.rank - 1] == self.nonce

    def what_is_wrong(self) -> str:
        """Return who has this rank's place, or the run, as far as that is known."""
        newest = fencing.highest(self.store)
        if not self.said.get(newest, True):
            found = read(self.store, ranks.hello(newest, self.rank), Hello)
            if found is not None:
                return f" Process {found.pid} on {found.host} is rank {self.rank}."
        lease = read_lease(self.store)
        if lease is not None:
            return f" The newest process to write to the run is {lease.pid} on {lease.host}."
        return ""


def join(
    store: ByteStore,
    job: str,
    *,
    rank: int,
    about: Ranks,
    owner: Process,
    document_format: DocumentFormat,
    compression: Compression | None = None,
    token: Callable[[], str] = _token,
    signing_key: Callable[[], bytes | None] = lambda: keys.signing_key(create=True),
) -> Follower:
    """Take part as rank `rank` in the run that rank 0 opens, or is about to open.

    Raises:
        RankMissing: rank 0 does not come in time, or another process has this rank.
        StoreError: the store does not answer.
    """
    patience = about.patience_for(store)
    knock = _Knock(store, job, rank, about.size, owner, token())
    found = patience.until(
        knock.look,
        seconds=about.start_timeout,
        why=lambda: f"rank {rank} waits for rank 0 to open the run",
    )
    if found is None:
        raise RankMissing(
            f"Rank 0 did not take in rank {rank} within {about.start_timeout:g} seconds.{knock.what_is_wrong()}"
            f"{f' That it is one: {about.origin}.' if about.origin else ''}",
            hint="Start all ranks, with the same root, the same job and the same number of them.",
            ranks=(0,),
        )
    meeting = Rendezvous(
        store,
        fencing.Claim(found.epoch, WriteId(found.write_id)),
        about.size,
        patience,
        about.sync_timeout,
    )
    writer = RankWriter(
        meeting,
        job=job,
        rank=rank,
        replicated=about.replicated,
        owner=owner,
        document_format=document_format,
        compression=compression or Compression(),
        token=token,
        signing_key=signing_key,
    )
    return Follower(meeting, writer, job=job, start=about.start)

"""The coordinator's side of a checkpoint of several ranks: rank 0 orders, waits, compares and decides.

Two phases. First every rank makes what it has durable and leaves a record of it; then, and only if all
have done so for one and the same order, the coordinator commits one manifest for all. A record belongs to one
order, and an order has a write id of its own, so parts of two attempts never come together.

Invariant: only the coordinator deletes. A rank that is late writes what nobody names, and the next sweep
takes it. No rank begins to write before the order is there, which comes after everything that the save
before it had to tidy up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from unbroken.errors import NoUsableCheckpoint, RankMissing, ReplicasDiffer, StoreError, UnbrokenError
from unbroken.format import layout, ranks
from unbroken.format.meta import Meta
from unbroken.format.ranks import (
    Admission,
    Ballot,
    Doubt,
    Finding,
    Hello,
    Outcome,
    Proposal,
    RankRecord,
    SaveOrder,
    Verdict,
)
from unbroken.repo import fencing
from unbroken.repo.encoding import EncodedComponent
from unbroken.repo.rendezvous import AGREEING, WRITING, Limit, Patience, Rendezvous
from unbroken.store.base import ByteStore, children, delete_all
from unbroken.types import Digest, Epoch, Sequence

KEPT_ORDERS = 2
"""Records of so many saves stay, for ranks that are late to learn what became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The other processes of a run: how many ranks there are in all, and what must be the same on each.

    `sync_timeout` is how many seconds a rank may keep the others waiting, `start_timeout` until it is there.
    `origin` says who has told the numbers, where somebody has.
    """

    size: int
    replicated: frozenset[str]
    sync_timeout: float
    start_timeout: float
    patience: Patience | None = None
    origin: str = ""
    tell: Callable[[str], None] | None = None
    """Told of waits that take long."""

    def patience_for(self, store: ByteStore) -> Patience:
        """Return how to wait for words in a store."""
        return replace(self.patience or Patience.for_store(store), tell=self.tell)

    @property
    def start(self) -> Limit:
        """How long the others have until they are there, and have read what they go on from."""
        return Limit(self.start_timeout, "start_timeout")


class Coordinator:
    """Rank 0 of a run. One order at a time."""

    def __init__(self, store: ByteStore, claim: fencing.Claim, about: Ranks) -> None:
        self.replicated = about.replicated
        self.size = about.size
        self._others = range(1, about.size)
        self._meeting = Rendezvous(store, claim, about.size, about.patience_for(store), about.sync_timeout)
        self._start_limit = about.start
        self._origin = about.origin
        self._decided = 0
        """So many proposals have been decided on."""
        self._saves = 0
        self._untold: SaveOrder | None = None
        """The order that is being given, or could not be."""
        self._order: SaveOrder | None = None
        """The order that was given last."""

    def admit(self) -> None:
        """Wait for every other rank, and take in those that came.

        Raises:
            RankMissing: some did not come in time, or think that there is another number of ranks.
            Fenced: the run was taken over.
        """
        self._sweep_former()
        came: dict[int, Hello] = {}
        self._await_all(came)
        self._admit(came)

    def refuse(self, error: Exception) -> None:
        """Tell the ranks that are there that rank 0 has not begun, and why. Those that come later wait in vain."""
        meeting = self._meeting
        with suppress(UnbrokenError):  # they would find out by themselves, later
            came = meeting.heard(self._hellos(), Hello, self._others)
            self._admit(came, refusal=error)

    def _hellos(self) -> str:
        return f"{ranks.folder(self._meeting.epoch)}/hello"

    def _await_all(self, came: dict[int, Hello]) -> None:
        try:
            self._meeting.gather(
                self._hellos(),
                Hello,
                self._others,
                doing="waiting for all ranks to start",
                within=self._start_limit,
                found=came,
            )
        except RankMissing as error:
            if not self._origin:
                raise
            raise RankMissing(
                f"{error.message} There are {self.size} ranks: {self._origin}.",
                hint=error.hint,
                ranks=error.ranks,
            ) from error
        wrong = sorted(rank for rank, hello in came.items() if hello.world_size != self.size)
        if wrong:
            raise RankMissing(
                f"Rank {wrong[0]} was told that there are {came[wrong[0]].world_size} ranks, and rank 0 that there"
                f" are {self.size}.",
                hint="Start all ranks with the same number of them.",
                ranks=wrong,
            )

    def _admit(self, came: Mapping[int, Hello], *, refusal: Exception | None = None) -> None:
        meeting = self._meeting
        meeting.say(
            ranks.admission(meeting.epoch),
            Admission(
                epoch=meeting.epoch,
                write_id=meeting.claim.write_id,
                world_size=self.size,
                nonces=[came[rank].nonce if rank in came else "" for rank in self._others],
                refusal="" if refusal is None else reason_of(refusal),
                ranks=[] if refusal is None else _to_blame(refusal),
            ),
        )

    def _sweep_former(self) -> None:
        store, epoch = self._meeting.store, self._meeting.epoch
        for name in children(store, "ranks"):
            number = ranks.epoch_of(name)
            if number is not None and number < epoch:
                self._forget(ranks.folder(Epoch(number)))

    def _forget(self, place: str) -> None:
        store = self._meeting.store
        with suppress(StoreError):  # leftovers, which the next one tries to remove again
            delete_all(store, sorted(store.list(place)))

    # From where to go on

    def propose(self, sequence: int) -> None:
        """Propose to go on from a commit, 0: from nothing. One that could not be made may be made again."""
        self._meeting.say(f"{self._start()}/proposal.json", Proposal(sequence=sequence))

    def ballots(self) -> dict[int, Ballot]:
        """Wait for what the other ranks say to the proposal.

        Raises:
            RankMissing: some say nothing in time.
        """
        # Each reads its whole part before it can say anything, which takes as long as a start may take. One that
        # has refused is gone: its word may stand below a proposal that was passed over before it was heard.
        gone: dict[int, Ballot] = {}
        for number in range(1, self._decided + 1):
            said = self._meeting.heard(ranks.start(self._meeting.epoch, number), Ballot, self._others)
            gone.update({rank: ballot for rank, ballot in said.items() if ballot.vote == "refused"})
        return self._meeting.gather(
            self._start(),
            Ballot,
            self._others,
            found=gone,
            doing=AGREEING,
            within=self._start_limit,
        )

    def decide(self, verdict: Verdict) -> None:
        """Tell all ranks what becomes of the proposal."""
        self._meeting.say(f"{self._start()}/verdict.json", verdict)
        self._decided += 1

    def _start(self) -> str:
        return ranks.start(self._meeting.epoch, self._decided + 1)

    # Saving

    def order(self, order: SaveOrder) -> None:
        """Order all ranks to write what they have of a step."""
        self._next_save()
        self._untold = self._order = order
        self._meeting.say(f"{self._save()}/order.json", order)
        self._untold = None

    def decline(self, meta: Meta, error: Exception) -> None:
        """Tell all ranks that this save was not begun, so that none waits for its order."""
        write_id = self._meeting.claim.write_id
        self._next_save()
        self._untold = SaveOrder(
            step=meta.step,
            segment=meta.segment,
            position=meta.position,
            write_id=write_id,
            directory=layout.checkpoint(meta.step, write_id),
        )
        self.give_up(error)
        self._untold = None

    def _next_save(self) -> None:
        self._saves += 1
        if self._saves > KEPT_ORDERS:
            self._forget(ranks.save(self._meeting.epoch, self._saves - KEPT_ORDERS))

    def collect(self, own: Mapping[str, EncodedComponent]) -> list[RankRecord]:
        """Wait until every other rank has written, and return what, in the order of the ranks.

        `own` are the components that rank 0 has written, by name.

        Raises:
            RankMissing: some say nothing in time, could not write, or have answered another order.
            ReplicasDiffer: what must be the same is not.
        """
        found = self._meeting.gather(self._save(), RankRecord, self._others, doing=WRITING)
        self._check_order(found)
        refused = sorted(rank for rank, record in found.items() if record.refusal)
        if refused:
            raise RankMissing(
                f"Rank {refused[0]} has not written its part: {found[refused[0]].refusal}",
                hint="What was committed before is intact.",
                ranks=refused,
                # Where one of them has another reason, room alone helps nobody.
                full=all(found[rank].full for rank in refused),
            )
        self._compare({name: part for name, part in own.items() if name in self.replicated}, found)
        return [found[rank] for rank in self._others]

    def _check_order(self, found: Mapping[int, RankRecord]) -> None:
        """Raise where a rank has answered something else than the order: parts of two attempts never go together."""
        order = self._order
        wrong = [
            rank
            for rank, record in found.items()
            if order is None or (record.write_id, record.step) != (order.write_id, order.step)
        ]
        if wrong:
            record = found[wrong[0]]
            raise RankMissing(
                f"Rank {wrong[0]} has answered another order than the one that was given: what it has written is"
                f" of step {record.step:,} and the attempt {record.write_id}.",
                hint="What was committed before is intact; start all ranks again.",
                ranks=sorted(wrong),
            )

    def _compare(self, own: Mapping[str, EncodedComponent], found: Mapping[int, RankRecord]) -> None:
        expected = {name: part.entry.digest for name, part in own.items()}
        doubted = {
            rank: differing
            for rank, record in found.items()
            if (differing := _differing(expected, record.agree))
        }
        if not doubted:
            return
        names = frozenset[str]().union(*doubted.values())
        parts = [own[name] for name in sorted(names) if name in own]
        self._meeting.say(
            f"{self._save()}/doubt.json",
            Doubt(
                components=sorted(names),
                documents={part.file_name: part.entry for part in parts},
                blobs={digest: size for part in parts for digest, size in part.sizes.items()},
                ranks=sorted(doubted),
            ),
        )
        lines = self._findings(doubted)
        raise ReplicasDiffer(
            f"What must be the same on every rank is not: {', '.join(sorted(names))} of"
            f" {', '.join(f'rank {rank}' for rank in sorted(doubted))}.",
            differences=lines,
        )

    def _findings(self, doubted: Mapping[int, Collection[str]]) -> list[str]:
        try:
            found = self._meeting.gather(
                f"{self._save()}/finding", Finding, doubted, doing="looking where ranks differ"
            )
        except RankMissing as error:
            return [
                f"rank {rank}: {', '.join(sorted(doubted[rank]))} (it does not say where)"
                for rank in error.ranks
            ]
        return [f"rank {rank}: {line}" for rank in sorted(found) for line in found[rank].differences]

    def conclude(self, sequence: Sequence) -> None:
        """Tell all ranks that the checkpoint exists."""
        # It exists whether or not they hear of it: theirs is then a save of which they do not know.
        with suppress(StoreError):
            self._meeting.say(f"{self._save()}/outcome.json", Outcome(sequence=sequence))

    def give_up(self, error: Exception) -> None:
        """Tell all ranks that there will be no checkpoint."""
        differing = list(error.differences) if isinstance(error, ReplicasDiffer) else []
        reason = reason_of(error)
        with suppress(UnbrokenError):  # the error that is on its way says more; they will not wait for ever
            self._meeting.say(
                f"{self._save()}/outcome.json",
                Outcome(sequence=0, reason=reason, differing=differing, order=self._untold),
            )

    def _save(self) -> str:
        return ranks.save(self._meeting.epoch, self._saves)


def reason_of(error: Exception) -> str:
    """Return what one rank tells the others of an error."""
    if isinstance(error, NoUsableCheckpoint):
        return " ".join([error.message, *error.reasons])
    return error.message if isinstance(error, UnbrokenError) else f"{type(error).__name__}: {error}"


def _to_blame(error: Exception) -> list[int]:
    return list(error.ranks) if isinstance(error, RankMissing) else [0]


def _differing(expected: Mapping[str, Digest], found: Mapping[str, Digest]) -> frozenset[str]:
    return frozenset(name for name in {*expected, *found} if expected.get(name) != found.get(name))

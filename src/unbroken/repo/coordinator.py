"""The coordinator's side of a checkpoint of several ranks: rank 0 orders, waits, compares and decides.

Two phases. First every rank makes what it has durable and leaves a record of it; then, and only if all
have done so for one and the same order, the coordinator commits one manifest for all. A record belongs to one
order, and an order has a write id of its own, so parts of two attempts never come together.

Invariant: only the coordinator deletes. A rank that is late writes what nobody names, and the next sweep
takes it. No rank begins to write before the order is there, which comes after everything that the save
before it had to tidy up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from unbroken.errors import RankMissing, ReplicasDiffer, StoreError, UnbrokenError
from unbroken.format import ranks
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
from unbroken.repo.rendezvous import WRITING, Patience, Rendezvous
from unbroken.store.base import ByteStore, children, delete_all
from unbroken.types import Digest, Epoch, Sequence

KEPT_ORDERS = 2
"""Records of so many saves stay, for ranks that are late to learn what became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The other processes of a run: how many ranks there are in all, and what must be the same on each.

    `sync_timeout` is how many seconds a rank may keep the others waiting, `start_timeout` until it is there.
    """

    size: int
    replicated: frozenset[str]
    sync_timeout: float
    start_timeout: float
    patience: Patience | None = None


class Coordinator:
    """Rank 0 of a run. One order at a time."""

    def __init__(self, store: ByteStore, claim: fencing.Claim, about: Ranks) -> None:
        self.replicated = about.replicated
        self.size = about.size
        self._others = range(1, about.size)
        self._meeting = Rendezvous(
            store, claim, about.size, about.patience or Patience.for_store(store), about.sync_timeout
        )
        self._start_timeout = about.start_timeout
        self._proposals = 0
        self._saves = 0
        self._untold: SaveOrder | None = None
        """The order that is being given, or could not be."""

    def admit(self) -> None:
        """Wait for every other rank, and take in those that came.

        Raises:
            RankMissing: some did not come in time, or think that there is another number of ranks.
            Fenced: the run was taken over.
        """
        self._sweep_former()
        came: dict[int, Hello] = {}
        try:
            self._await_all(came)
        except RankMissing as error:
            with suppress(UnbrokenError):  # they would find out by themselves, later
                self._admit(came, refusal=error)
            raise
        self._admit(came)

    def _await_all(self, came: dict[int, Hello]) -> None:
        self._meeting.gather(
            f"{ranks.folder(self._meeting.epoch)}/hello",
            Hello,
            self._others,
            doing="waiting for all ranks to start",
            seconds=self._start_timeout,
            found=came,
        )
        wrong = sorted(rank for rank, hello in came.items() if hello.world_size != self.size)
        if wrong:
            raise RankMissing(
                f"Rank {wrong[0]} was told that there are {came[wrong[0]].world_size} ranks, and rank 0 that there"
                f" are {self.size}.",
                hint="Start all ranks with the same number of them.",
                ranks=wrong,
            )

    def _admit(self, came: Mapping[int, Hello], *, refusal: RankMissing | None = None) -> None:
        meeting = self._meeting
        meeting.say(
            ranks.admission(meeting.epoch),
            Admission(
                epoch=meeting.epoch,
                write_id=meeting.claim.write_id,
                world_size=self.size,
                nonces=[came[rank].nonce if rank in came else "" for rank in self._others],
                refusal="" if refusal is None else refusal.message,
                ranks=[] if refusal is None else list(refusal.ranks),
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
        """Propose to go on from a commit, 0: from nothing."""
        self._proposals += 1
        self._meeting.say(f"{self._start()}/proposal.json", Proposal(sequence=sequence))

    def ballots(self) -> dict[int, Ballot]:
        """Wait for what the other ranks say to the proposal.

        Raises:
            RankMissing: some say nothing in time.
        """
        # Each reads its whole part before it can say anything, which takes as long as a start may take.
        return self._meeting.gather(
            self._start(),
            Ballot,
            self._others,
            doing="agreeing on a checkpoint",
            seconds=self._start_timeout,
        )

    def decide(self, verdict: Verdict) -> None:
        """Tell all ranks what becomes of the proposal."""
        self._meeting.say(f"{self._start()}/verdict.json", verdict)

    def _start(self) -> str:
        return ranks.start(self._meeting.epoch, self._proposals)

    # Saving

    def order(self, order: SaveOrder) -> None:
        """Order all ranks to write what they have of a step."""
        self._saves += 1
        if self._saves > KEPT_ORDERS:
            self._forget(ranks.save(self._meeting.epoch, self._saves - KEPT_ORDERS))
        self._untold = order
        self._meeting.say(f"{self._save()}/order.json", order)
        self._untold = None

    def collect(self, own: Mapping[str, EncodedComponent]) -> list[RankRecord]:
        """Wait until every other rank has written, and return what, in the order of the ranks.

        `own` are the components that rank 0 has written, by name.

        Raises:
            RankMissing: some say nothing in time, or could not write.
            ReplicasDiffer: what must be the same is not.
        """
        found = self._meeting.gather(self._save(), RankRecord, self._others, doing=WRITING)
        refused = sorted(rank for rank, record in found.items() if record.refusal)
        if refused:
            raise RankMissing(
                f"Rank {refused[0]} has not written its part: {found[refused[0]].refusal}",
                hint="What was committed before is intact.",
                ranks=refused,
            )
        self._compare({name: part for name, part in own.items() if name in self.replicated}, found)
        return [found[rank] for rank in self._others]

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
        reason = error.message if isinstance(error, UnbrokenError) else f"{type(error).__name__}: {error}"
        with suppress(UnbrokenError):  # the error that is on its way says more; they will not wait for ever
            self._meeting.say(
                f"{self._save()}/outcome.json",
                Outcome(sequence=0, reason=reason, differing=differing, order=self._untold),
            )

    def _save(self) -> str:
        return ranks.save(self._meeting.epoch, self._saves)


def _differing(expected: Mapping[str, Digest], found: Mapping[str, Digest]) -> frozenset[str]:
    return frozenset(name for name in {*expected, *found} if expected.get(name) != found.get(name))

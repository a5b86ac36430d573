"""How the ranks agree on a checkpoint before any of them touches a live object.

The coordinator proposes one commit after the other, newest first. Each rank reads its whole part and plans
its restore, then says whether it can. Only if all can do they go on with it; one damaged part sends all to the
next older commit, and one that does not fit stops all.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from unbroken.errors import CorruptObject, NoUsableCheckpoint, ObjectMissing, StateMismatch, UnbrokenError
from unbroken.format.ranks import Ballot, Verdict
from unbroken.repo.coordinator import Coordinator
from unbroken.repo.follower import Follower


class Council(Protocol):
    """One process's voice in the choice of a checkpoint."""

    def propose(self, sequence: int) -> None:
        """An attempt begins: to go on from this commit, 0: from nothing."""
        ...

    def ready(self) -> None:
        """This process can go on with it; return when all can.

        Raises:
            CorruptObject: the part of another is damaged: the next older commit is to be tried.
            StateMismatch: what another has saved does not fit there.
            RankMissing: another says nothing in time.
        """
        ...

    def failed(self, error: Exception) -> None:
        """This process cannot go on with it, for this reason. Does nothing when it was `ready` before.

        Raises:
            PassedOver: another proposal comes.
        """
        ...

    def end(self, error: Exception) -> None:
        """This process finds nothing to go on with, for this reason. Does nothing where all have agreed."""
        ...


class Alone:
    """Nobody else is to be asked."""

    def propose(self, sequence: int) -> None: ...

    def ready(self) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def end(self, error: Exception) -> None: ...


class Chair:
    """The coordinator's voice."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._open = False
        self._over = False
        """Whether all know that no other proposal comes."""

    def propose(self, sequence: int) -> None:
        self._coordinator.propose(sequence)
        self._open = True

    def ready(self) -> None:
        ballots = self._coordinator.ballots()
        refused = {rank: ballot for rank, ballot in ballots.items() if ballot.vote == "refused"}
        damaged = {rank: ballot for rank, ballot in ballots.items() if ballot.vote == "damaged"}
        if refused:
            reasons = [f"rank {rank}: {ballot.reason}" for rank, ballot in refused.items()]
            self._decide(Verdict(decision="stop", reason="; ".join(reasons)))
            raise StateMismatch(
                f"The checkpoint cannot be restored on {_who(refused)}; nothing was touched on any rank.",
                hint="Start with the former settings, or use another run.",
                differences=[
                    f"rank {rank}: {line}"
                    for rank, ballot in refused.items()
                    for line in (ballot.differences or [ballot.reason])
                ],
            )
        if damaged:
            reason = "; ".join(f"rank {rank}: {ballot.reason}" for rank, ballot in damaged.items())
            self._decide(Verdict(decision="next", reason=reason))
            raise CorruptObject(reason)
        self._decide(Verdict(decision="go"))

    def failed(self, error: Exception) -> None:
        if not self._open:
            return  # all have heard already
        older = isinstance(error, (CorruptObject, ObjectMissing))
        self._decide(Verdict(decision="next" if older else "stop", reason=f"rank 0: {_message(error)}"))

    def end(self, error: Exception) -> None:
        if self._over:
            return
        with suppress(UnbrokenError):  # they wait in vain then; the error that is on its way says more
            if not self._open:
                self.propose(0)  # which nobody has to read anything for
            self._decide(Verdict(decision="stop", reason=f"rank 0: {_message(error)}"))

    def _decide(self, verdict: Verdict) -> None:
        self._open = False
        self._over = verdict.decision != "next"
        self._coordinator.decide(verdict)


class PassedOver(CorruptObject):
    """The ranks do not go on with this proposal: another one comes."""


class Member:
    """The voice of any other rank."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._asked = False

    def heard(self) -> int:
        """Wait for the coordinator's next proposal: the number of a commit, 0 for a fresh start.

        Raises:
            RankMissing: it does not come in time.
        """
        return self._follower.proposal().sequence

    def propose(self, sequence: int) -> None:
        """It answers proposals and makes none."""
        self._asked = True

    def ready(self) -> None:
        self._asked = False
        self._follower.vote(Ballot(vote="ready"))
        self._heed()

    def failed(self, error: Exception) -> None:
        if not self._asked:
            return  # it has answered
        self._asked = False
        if isinstance(error, (CorruptObject, ObjectMissing)):
            self._follower.vote(Ballot(vote="damaged", reason=_message(error)))
            self._heed()
            return
        differences = list(error.differences) if isinstance(error, StateMismatch) else []
        self._follower.vote(Ballot(vote="refused", reason=_message(error), differences=differences))

    def end(self, error: Exception) -> None:
        """It is for rank 0 to end the search."""

    def _heed(self) -> None:
        verdict = self._follower.verdict()
        if verdict.decision == "next":
            raise PassedOver(verdict.reason)
        if verdict.decision == "stop":
            raise NoUsableCheckpoint(
                f"The run {self._follower.job!r} cannot go on.",
                hint="See what the rank that is named says, or what rank 0 prints.",
                reasons=[verdict.reason],
            )


def _message(error: Exception) -> str:
    if isinstance(error, NoUsableCheckpoint):
        return " ".join([error.message, *error.reasons])
    return error.message if isinstance(error, UnbrokenError) else f"{type(error).__name__}: {error}"


def _who(ranks: dict[int, Ballot]) -> str:
    return ", ".join(f"rank {rank}" for rank in sorted(ranks))

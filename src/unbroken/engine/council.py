"""How the ranks agree on a checkpoint before any of them touches a live object.

The coordinator proposes one commit after the other, newest first. Each rank reads its whole part and plans
its restore, then says whether it can. Only if all can do they go on with it; a part that one cannot see or read
sends all to the next older commit, and one that does not fit stops all. So does whatever else goes wrong on a
rank before it could say anything: it leaves its reason in the place of an answer.

Not promised: that a commit which was passed over is damaged. That is for rank 0 to find out by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, Protocol

from unbroken.errors import (
    CorruptObject,
    NoUsableCheckpoint,
    ObjectMissing,
    RankMissing,
    Rejected,
    StateMismatch,
    UnbrokenError,
)
from unbroken.format import layout
from unbroken.format.ranks import Ballot, Verdict
from unbroken.format.records import Commit
from unbroken.repo.coordinator import Coordinator, reason_of
from unbroken.repo.follower import Follower
from unbroken.types import Sequence

OLDER = ("unseen", "damaged", "rejected")
"""Votes that send all to the next older commit."""


class Council(Protocol):
    """One process's voice in the choice of a checkpoint."""

    def propose(self, sequence: int) -> None:
        """An attempt begins: to go on from this commit, 0: from nothing."""
        ...

    def ready(self) -> None:
        """This process can go on with it; return when all can.

        Raises:
            CorruptObject: another cannot use its part: the next older commit is to be tried.
            Rejected: so it is, since what another has read is whole and not good enough.
            StateMismatch: what another has saved does not fit there.
            RankMissing: another says nothing in time, or cannot go on for a reason of its own.
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


class Doubted(CorruptObject):
    """Other ranks cannot use their parts of a commit, by their own account.

    `damaged` are those who have read theirs and found damage. The others do not even see the commit.
    """

    def __init__(self, message: str, *, damaged: Iterable[int]) -> None:
        super().__init__(message)
        self.damaged = tuple(damaged)


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
        unable = {rank: ballot for rank, ballot in ballots.items() if ballot.vote in OLDER}
        if refused:
            self._decide(Verdict(decision="stop", reason=_said(refused)))
            raise _refusal(refused)
        if unable:
            self._decide(Verdict(decision="next", reason=_said(unable)))
            if all(ballot.vote == "rejected" for ballot in unable.values()):
                raise Rejected(_said(unable))
            raise Doubted(
                _said(unable), damaged=(rank for rank, ballot in unable.items() if ballot.vote == "damaged")
            )
        self._decide(Verdict(decision="go"))

    def failed(self, error: Exception) -> None:
        if not self._open:
            return  # all have heard already
        older = isinstance(error, (CorruptObject, ObjectMissing, Rejected))
        self._decide(Verdict(decision="next" if older else "stop", reason=f"rank 0: {reason_of(error)}"))

    def end(self, error: Exception) -> None:
        if self._over:
            return
        with suppress(UnbrokenError):  # they wait in vain then; the error that is on its way says more
            if not self._open:
                self.propose(0)  # which nobody has to read anything for
            self._decide(Verdict(decision="stop", reason=f"rank 0: {reason_of(error)}"))

    def _decide(self, verdict: Verdict) -> None:
        self._coordinator.decide(verdict)  # if it cannot be told it is still to be told
        self._open = False
        self._over = verdict.decision != "next"


class PassedOver(CorruptObject):
    """The ranks do not go on with this proposal: another one comes."""


class Unseen(ObjectMissing):
    """What rank 0 proposes does not show on this rank."""


class Member:
    """The voice of any other rank."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._asked = False
        self._over = False
        """Whether this rank has nothing more to say: all have agreed, or stop."""

    def heard(self) -> int:
        """Wait for the coordinator's next proposal: the number of a commit, 0 for a fresh start.

        Raises:
            RankMissing: it does not come in time.
        """
        return self._follower.proposal().sequence

    def commit(self, sequence: int) -> Commit:
        """Return the commit of this number.

        Raises:
            Unseen: it does not show here, however long it is looked for.
            CorruptObject: its record is damaged.
        """
        found = self._follower.commit(Sequence(sequence))
        if found is None:
            key = layout.commit(Sequence(sequence))
            raise Unseen(f"{key}, which rank 0 reads, does not show here.", key=key)
        return found

    def propose(self, sequence: int) -> None:
        """It answers proposals and makes none."""
        self._asked = True

    def ready(self) -> None:
        self._follower.vote(Ballot(vote="ready"))
        self._asked = False
        self._heed()

    def failed(self, error: Exception) -> None:
        if not self._asked:
            return  # it has answered
        if isinstance(error, (CorruptObject, ObjectMissing, Rejected)):
            self._follower.vote(Ballot(vote=_vote_of(error), reason=reason_of(error)))
            self._asked = False
            self._heed()
            return
        self._refuse(error)

    def end(self, error: Exception) -> None:
        """This rank goes no further: rank 0 hears why, at the proposal that is open or at the next one."""
        if self._over:
            return
        with suppress(UnbrokenError):  # the error that is on its way says more
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        differences = list(error.differences) if isinstance(error, StateMismatch) else []
        self._follower.leave(Ballot(vote="refused", reason=reason_of(error), differences=differences))
        self._asked, self._over = False, True

    def _heed(self) -> None:
        verdict = self._follower.verdict()
        self._over = verdict.decision != "next"
        if verdict.decision == "next":
            raise PassedOver(verdict.reason)
        if verdict.decision == "stop":
            raise NoUsableCheckpoint(
                f"The run {self._follower.job!r} cannot go on.",
                hint="See what the rank that is named says, or what rank 0 prints.",
                reasons=[verdict.reason],
            )


def _vote_of(error: Exception) -> Literal["unseen", "damaged", "rejected"]:
    if isinstance(error, Rejected):
        return "rejected"
    return "unseen" if isinstance(error, Unseen) else "damaged"


def _said(ballots: dict[int, Ballot]) -> str:
    return "; ".join(f"rank {rank}: {ballots[rank].reason}" for rank in sorted(ballots))


def _refusal(ballots: dict[int, Ballot]) -> StateMismatch | RankMissing:
    """Return the error of ranks that cannot go on: what was saved does not fit there, or something else is wrong."""
    who = ", ".join(f"rank {rank}" for rank in sorted(ballots))
    if not any(ballot.differences for ballot in ballots.values()):
        return RankMissing(
            f"The run cannot go on, and nothing was touched on any rank. {_said(ballots)}",
            hint=f"Remove the cause on {who}, then start all ranks again.",
            ranks=sorted(ballots),
        )
    return StateMismatch(
        f"The checkpoint cannot be restored on {who}; nothing was touched on any rank.",
        hint="Start with the former settings, or use another run.",
        differences=[
            f"rank {rank}: {line}"
            for rank in sorted(ballots)
            for line in (ballots[rank].differences or [ballots[rank].reason])
        ],
    )

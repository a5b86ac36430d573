"""What the trainer's ledger of rollouts says to a reader. Only that part of it is read here."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from unbroken.errors import CorruptObject


class Entry(msgspec.Struct, kw_only=True):
    """One rollout that was not handed to training yet; see `trainer.ledger`."""

    id: str
    agent: str = ""
    attempt: int = 0
    progress: str = "waiting"
    outcome: str | None = None
    reward: float | None = None
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what a document says of it."""
        return {
            "attempt": self.attempt,
            "progress": self.progress,
            "outcome": self.outcome or "",
            "reward": self.reward,
            "error": self.error,
        }


class LedgerFacts(msgspec.Struct, kw_only=True):
    """All rollouts so far. `finished` counts those that have ended, in whichever way; `completed` those with a reward, and
    `rewards` is the sum of these, where a ledger keeps them."""

    finished: int = 0
    completed: int | None = None
    rewards: float | None = None
    entries: list[Entry] = []

    @property
    def episodes(self) -> int:
        return self.finished if self.completed is None else self.completed

    @property
    def average_reward(self) -> float | None:
        """The mean reward of all episodes, or of those that were not handed to training yet."""
        known = [entry.reward for entry in self.entries if entry.reward is not None]
        total, count = math.fsum(known), len(known)
        if self.completed and self.rewards is not None:
            total, count = self.rewards, self.completed
        # Rewards are added up as rollouts come in, so the last bits are a matter of chance.
        return float(f"{total / count:.12g}") if count else None

    def of(self, agent: str) -> list[Entry]:
        """Return the rollouts of one agent, in the order in which they were given out."""
        return [entry for entry in self.entries if entry.agent == agent]


def read_ledger(data: bytes) -> LedgerFacts | None:
    """Return what a ledger says; None where there is none.

    Raises:
        CorruptObject: it cannot be read.
    """
    if not data:
        return None
    try:
        return msgspec.msgpack.decode(data, type=LedgerFacts)
    except msgspec.DecodeError as error:
        raise CorruptObject(
            f"The ledger of rollouts cannot be read: {error}.", hint="Take an older checkpoint."
        ) from error

"""What a restore by action replay costs, and when a save waits for a moment at which it costs less.

A replay takes about as long as the recorded steps took when they were made, which the recorders measure. At
the start of an episode there is nothing to replay, so a save that is only due, and that nobody waits for,
is put off while a restore would take long: until the replays are short again, but for no more steps than the
longest episode seen has had. Then it is made all the same, however long its restore takes. Before the first
episode has ended nobody knows how long one is, and nothing is put off.

Not promised: a duration on another machine, or on this one when it is busier; and that episodes of several
environments begin together: where they do not, a save may wait in vain, and does so no longer than said.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, runtime_checkable

from unbroken.capture.hooks import keeper_of

LIMIT = 5.0
"""Seconds of replay above which a save waits for the start of an episode."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a restore of one moment costs. Adds up over environments that are restored one after the other."""

    environments: int = 0
    """How many are replayed."""
    steps: int = 0
    """Steps that a restore replays."""
    seconds: float = 0.0
    """What they took when they were made, with their resets."""
    avoidable: float = 0.0
    """The part of `seconds` that the next starts of episodes make unnecessary."""
    taken: int = 0
    """Steps that were taken since the recorder came; of several environments the most."""
    longest: int = 0
    """Steps of the longest episode that was seen from its beginning to its end; 0 before one was."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.environments + other.environments,
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.avoidable + other.avoidable,
            max(self.taken, other.taken),
            max(self.longest, other.longest),
        )

    def __str__(self) -> str:
        of = "" if self.environments == 1 else f" of {self.environments} environments"
        return f"a restore replays {self.steps:,} steps{of}, {about(self.seconds)}"


def about(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 0.1:
        return "less than 0.1 s"
    return f"about {seconds:.1f} s" if seconds < 10 else f"about {seconds:,.0f} s"


def side_by_side(costs: Sequence[Cost], processors: int) -> Cost:
    """Return the cost of environments that are restored at the same time, each in a process of its own."""
    added = reduce(Cost.__add__, costs, Cost())
    slowest = max((cost.seconds for cost in costs), default=0.0)
    longest_avoidable = max((cost.avoidable for cost in costs), default=0.0)
    return replace(
        added,
        seconds=max(slowest, added.seconds / processors),
        avoidable=max(longest_avoidable, added.avoidable / processors),
    )


Teller = Callable[[], Cost]


@runtime_checkable
class Replays(Protocol):
    """A recorder whose environment is restored by replay."""

    def cost(self) -> Cost:
        """Return what a restore of this moment costs."""
        ...


_tellers: dict[int, tuple[weakref.ref[object], Teller]] = {}


def tell(obj: object, teller: Teller) -> None:
    """Let `teller` answer for an object whose environments are recorded elsewhere (in other processes)."""
    key = id(obj)
    _tellers[key] = (weakref.ref(obj, lambda _: _tellers.pop(key, None)), teller)


def teller_of(obj: object) -> Teller | None:
    """Return who knows what a restore of `obj` costs; None where nothing of it is replayed."""
    found = _tellers.get(id(obj))
    if found is not None and found[0]() is obj:
        return found[1]
    keeper = keeper_of(obj, "step")
    return keeper.cost if isinstance(keeper, Replays) else None


def tellers(objects: Iterable[object]) -> list[Teller]:
    """Return who knows what a restore of each of `objects` costs, of those that are replayed."""
    return [teller for obj in objects if (teller := teller_of(obj)) is not None]


def total(all_of_them: Iterable[Teller]) -> Cost:
    """Return the sum of what is told."""
    return reduce(Cost.__add__, (teller() for teller in all_of_them), Cost())


class Patience:
    """Says of each save that is due whether it should wait."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._since: int | None = None
        """Steps that were taken when the first of the saves in a row was put off."""

    def waits(self, now: Cost) -> bool:
        """Return whether a save that is due should wait for a cheaper moment. To be asked at every one."""
        if now.avoidable <= self._limit or not now.longest:
            self._since = None
            return False
        if self._since is None:
            self._since = now.taken
        if now.taken - self._since < now.longest:
            return True
        self._since = None
        return False

"""What a restore by action replay costs, and at which moment it costs so little that a save should be made.

A replay takes about as long as the recorded steps took when they were made, which the recorders measure. At
the start of an episode there is nothing to replay. So where a restore would have taken long and now takes little,
a save that would be due soon is made early. None is ever made later for it.

Not promised: a duration on another machine, or on this one when it is busier; and that episodes of several
environments begin together: where they do not, there may be no such moment, and saves come when they are due.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Protocol, runtime_checkable

from unbroken.capture.hooks import keeper_of

LIMIT = 5.0
"""Seconds of replay above which a restore takes long."""


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

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.environments + other.environments,
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.avoidable + other.avoidable,
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
    """Let `teller` answer for an object whose environments are recorded elsewhere (in other processes), as long as
    it is there and not `closed`."""
    key = id(obj)
    reference = weakref.ref(obj, lambda _: _tellers.pop(key, None))
    _tellers[key] = (reference, partial(_while_open, reference, teller))


def _while_open(reference: weakref.ref[object], teller: Teller) -> Cost:
    """Return what is told of an object that is still there and open; of any other nothing is restored."""
    obj = reference()
    return Cost() if obj is None or getattr(obj, "closed", False) else teller()


def teller_of(obj: object) -> Teller | None:
    """Return who knows what a restore of `obj` costs; None where nothing of it is replayed."""
    found = _tellers.get(id(obj))
    if found is not None and found[0]() is obj:
        return found[1]
    keeper = keeper_of(obj, "step")
    # Of nearly all objects there is none, and to look at a protocol takes fifty times as long.
    return keeper.cost if keeper is not None and isinstance(keeper, Replays) else None


def tellers(objects: Iterable[object]) -> list[Teller]:
    """Return who knows what a restore of each of `objects` costs, of those that are replayed."""
    return [teller for obj in objects if (teller := teller_of(obj)) is not None]


def total(all_of_them: Iterable[Teller]) -> Cost:
    """Return the sum of what is told."""
    return reduce(Cost.__add__, (teller() for teller in all_of_them), Cost())


class Moments:
    """Says whether the moment for a save has come."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._was_long = False

    def has_come(self, now: Cost) -> bool:
        """Return whether a restore would take little now and would have taken long when this was asked before."""
        long = now.avoidable > self._limit
        come, self._was_long = self._was_long and not long, long
        return come

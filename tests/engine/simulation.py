"""A training on a virtual clock: saves when the schedule says so, and each save costs what a test says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from unbroken.engine.schedule import Every, Schedule


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one save takes: training stands still, until durable, until the writer is free."""

    blocked: float
    durable: float
    busy: float

    @property
    def share(self) -> float:
        return self.blocked + self.busy

    def times(self, factor: float) -> Cost:
        return Cost(self.blocked * factor, self.durable * factor, self.busy * factor)


@dataclass(frozen=True, slots=True)
class Save:
    cut: float
    """When training goes on after the copy."""
    cost: Cost

    @property
    def durable_at(self) -> float:
        return self.cut + self.cost.durable


@dataclass(frozen=True, slots=True)
class Outcome:
    saves: list[Save]
    said: list[str]
    """What the schedule said of budgets that cannot hold."""

    @property
    def pauses(self) -> list[float]:
        """From where training went on after a save until it was stopped for the next."""
        return [b.cut - b.cost.blocked - a.cut for a, b in itertools.pairwise(self.saves)]

    @property
    def losses(self) -> list[float]:
        """The most that a kill could take along: killed just before the next save was durable."""
        return [b.durable_at - b.cost.blocked - a.cut for a, b in itertools.pairwise(self.saves)]

    @property
    def share(self) -> float:
        """Of the time from the first save to the last, how much went into all but the last."""
        return sum(s.cost.share for s in self.saves[:-1]) / (self.saves[-1].cut - self.saves[0].cut)


def simulate(
    every: Every,
    cost_of: Callable[[int], Cost],
    *,
    saves: int,
    step: float = 0.25,
    rollout: int = 0,
    update: float = 0.0,
) -> Outcome:
    """Train in steps of `step` seconds until so many saves were made; the n-th costs `cost_of(n)`.

    After every `rollout` steps comes an `update` of so many seconds, in which nothing can be saved.
    """
    clock = Clock()
    schedule = Schedule(every, clock)
    made: list[Save] = []
    said: list[str] = []
    writing: Save | None = None
    for n in itertools.count(1):
        if len(made) == saves:
            break
        end = clock.now + step + (update if rollout and n % rollout == 0 else 0.0)
        if writing is not None and (finished := writing.cut + writing.cost.busy) <= end:
            clock.now = max(clock.now, finished)
            schedule.written(durable=writing.cost.durable, busy=writing.cost.busy)
            writing = None
        clock.now = end
        if writing is None and schedule.due(0):
            cost = cost_of(len(made))
            clock.now += cost.blocked
            schedule.saved(0, blocked=cost.blocked)
            writing = Save(clock.now, cost)
            made.append(writing)
            if text := schedule.conflict():
                said.append(text)
    return Outcome(made, said)

"""When to save: every so many steps, seconds or episodes, whichever comes first.

Steps and episodes count by crossing a multiple, never by `step % n == 0`: with four environments a
step counter may jump over every multiple and would never hit one. The grid of multiples does not
move with a resume.

Not promised: a save at that very step. The schedule is asked at clean points only, and a save that
is still being written lets the next one wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from unbroken.errors import ConfigError

Clock: TypeAlias = Callable[[], float]
"""Seconds on a clock that never goes back."""

NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """An interval between saves; of several the one that ends first counts.

    Raises ConfigError if no interval is given, or one is zero, negative or not a number.

    >>> Every(steps=1000)
    Every(steps=1000, seconds=None, episodes=None)
    """

    steps: int | None = None
    seconds: float | None = None
    episodes: int | None = None

    def __post_init__(self) -> None:
        _check("steps", self.steps, whole=True)
        _check("seconds", self.seconds, whole=False)
        _check("episodes", self.episodes, whole=True)
        if self.steps is None and self.seconds is None and self.episodes is None:
            raise ConfigError(
                "Every() names no interval.",
                hint="Give steps=, seconds= or episodes=; to save only at the end, give a large one.",
            )

    @classmethod
    def of(cls, interval: Every | int) -> Every:
        """Return `interval`, or for a plain number that many steps."""
        return interval if isinstance(interval, cls) else cls(steps=_number(interval))

    def __str__(self) -> str:
        parts = [
            f"{value:,} {name}"
            for name, value in (("steps", self.steps), ("seconds", self.seconds), ("episodes", self.episodes))
            if value is not None
        ]
        return " or ".join(parts)


def _number(interval: object) -> int:
    if isinstance(interval, bool) or not isinstance(interval, int):
        raise ConfigError(
            f"{interval!r} is no interval between saves.",
            hint="Give a number of steps, or Every(seconds=60).",
        )
    return interval


def _check(name: str, value: object, *, whole: bool) -> None:
    if value is None:
        return
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(
            f"every {name} must be a {'whole ' if whole else ''}number, not {value!r}.",
            hint="Leave it out to save at the default interval.",
        )
    if not value > 0 or value == NEVER:
        raise ConfigError(
            f"every {name} must be above zero and finite, not {value!r}.",
            hint="Leave it out to save at the default interval.",
        )


DEFAULT_EVERY = Every(steps=10_000, seconds=300.0)


class Schedule:
    """The memory of one `Every`: what was saved last."""

    __slots__ = ("_clock", "_every", "_next_episode", "_next_step", "_next_time")

    def __init__(self, every: Every, clock: Clock, *, step: int = 0, episodes: int = 0) -> None:
        self._every = every
        self._clock = clock
        self._next_step = self._next_episode = self._next_time = NEVER
        self.saved(step, episodes)

    def due(self, step: int, episodes: int = 0) -> str:
        """Return why a save is due at this point, or an empty string. Asking changes nothing."""
        if step >= self._next_step:
            return f"every {self._every.steps:,} steps"
        if episodes >= self._next_episode:
            return f"every {self._every.episodes:,} episodes"
        if self._next_time != NEVER and self._clock() >= self._next_time:
            return f"every {self._every.seconds:g} seconds"
        return ""

    def saved(self, step: int, episodes: int = 0) -> None:
        """Count from here: the state at this point has been copied for writing."""
        every = self._every
        if every.steps is not None:
            self._next_step = (step // every.steps + 1) * every.steps
        if every.episodes is not None:
            self._next_episode = (episodes // every.episodes + 1) * every.episodes
        if every.seconds is not None:
            self._next_time = self._clock() + every.seconds

"""When to save: every so many steps, seconds or episodes, or when a budget says so; the first that is due.

Steps and episodes count by crossing a multiple, never by `step % n == 0`: with four environments a
step counter may jump over every multiple and would never hit one. The grid of multiples does not
move with a resume. What the budgets do is told in `engine/budget.py`.

Not promised: a save at that very step. The schedule is asked at clean points only, and a save that
is still being written lets the next one wait.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

from unbroken.engine.budget import Budget
from unbroken.engine.duration import is_length, percent, seconds_of, told
from unbroken.errors import ConfigError, shown

Clock: TypeAlias = Callable[[], float]
"""Seconds on a clock that never goes back."""

NEVER = math.inf
MOST = 2**63 - 1
"""What is more than that cannot be counted in a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """An interval between saves; of several the one that ends first counts.

    `max_loss` bounds how much work a kill may cost: seconds, or a text such as "90s", "5min" or "1h".
    `max_overhead` bounds the share of the time that goes into saving: 0.02 is 2 %. Both are held against
    what saves really cost, and the interval follows. With both, `max_loss` decides; a `BudgetWarning`
    says so where it needs more than `max_overhead`. With `max_overhead` alone saves are at least 10
    seconds apart.

    No save is made later than that for the sake of a cheap restore. Where environments are restored by playing
    their actions again and `max_loss` is more than half over, one may be made earlier, at the start of an episode.

    Raises ConfigError if no interval is given, or one is zero, negative or not a number.

    Raises:
        ConfigError: no interval is named, or one is no number, not above zero, or no share of the time.

    >>> Every(steps=1000, max_loss="5min")
    Every(steps=1000, seconds=None, episodes=None, max_loss=300.0, max_overhead=None)
    """

    steps: int | None = None
    seconds: float | None = None
    episodes: int | None = None
    max_loss: float | str | None = None
    max_overhead: float | None = None

    def __post_init__(self) -> None:
        _check("steps", self.steps, whole=True)
        _check("seconds", self.seconds, whole=False)
        _check("episodes", self.episodes, whole=True)
        if self.max_loss is not None:
            object.__setattr__(self, "max_loss", seconds_of(self.max_loss, name="max_loss"))
        _check_share("max_overhead", self.max_overhead)
        if all(getattr(self, field.name) is None for field in fields(self)):
            raise ConfigError(
                "Every() names no interval.",
                hint="Give steps=, seconds=, episodes=, max_loss= or max_overhead=;"
                " to save only at the end, give a large one.",
            )

    @classmethod
    def of(cls, interval: Every | int | str) -> Every:
        """Return `interval`, for a plain number that many steps, for a text what it says (`parse`).

        Raises:
            ConfigError: it is no interval.
        """
        if isinstance(interval, str):
            return cls.parse(interval)
        return interval if isinstance(interval, cls) else cls(steps=_number(interval))

    @classmethod
    def parse(cls, text: str) -> Every:
        """Return what `1000`, `steps=1000,seconds=60` or `max_loss=5min,max_overhead=0.02` says.

        Raises:
            ConfigError: it says no interval.
        """
        parts: dict[str, object] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if not value:
                name, value = "steps", name
            reader = _READERS.get(name.strip())
            if reader is None:
                raise ConfigError(
                    f"{shown(text)} is no interval.",
                    hint="Write steps=1000,seconds=60 or max_loss=5min,max_overhead=0.02.",
                )
            if name.strip() in parts:
                raise ConfigError(f"{shown(text)} says {name.strip()} twice.", hint="Keep one of the two.")
            try:
                parts[name.strip()] = reader(value)
            except ValueError:
                raise ConfigError(
                    f"{shown(value.strip())} is not a {'whole ' if reader is int else ''}number.",
                    hint=_meant(name.strip(), value.strip()),
                ) from None
        return cls(**parts)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [
            f"{value:,} {name}"
            for name, value in (("steps", self.steps), ("seconds", self.seconds), ("episodes", self.episodes))
            if value is not None
        ]
        if self.max_loss is not None:
            parts.append(f"{told(seconds_of(self.max_loss, name='max_loss'))} of work at risk")
        if self.max_overhead is not None:
            parts.append(f"{percent(self.max_overhead)} of the time for saving")
        return " or ".join(parts)


_READERS: Mapping[str, Callable[[str], object]] = {
    "steps": int,
    "seconds": float,
    "episodes": int,
    "max_loss": str.strip,
    "max_overhead": float,
}


def _meant(name: str, value: str) -> str:
    """Return what to write for a value that is no number."""
    if not is_length(value):
        return "Write it as steps=10000,seconds=300."
    if name == "seconds":
        return f"Write seconds={seconds_of(value, name=name):g}."
    return f"Write max_loss={value} (in a file also {{max_loss: {value}}}): a kill then costs at most that."


def _number(interval: object) -> int:
    if isinstance(interval, bool) or not isinstance(interval, int):
        raise ConfigError(
            f"{shown(interval)} is no interval between saves.",
            hint='Give a number of steps, Every(seconds=60), or the same as a text: "seconds=60".',
        )
    return interval


def _check(name: str, value: object, *, whole: bool) -> None:
    if value is None:
        return
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(
            f"every {name} must be a {'whole ' if whole else ''}number, not {shown(value)}.",
            hint="Leave it out to save at the default interval.",
        )
    if not 0 < value <= (MOST if whole else sys.float_info.max):
        raise ConfigError(
            f"every {name} must be above zero and finite, not {shown(value)}.",
            hint="Leave it out to save at the default interval.",
        )


def _check_share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ConfigError(
            f"{name} must be a share of the time, above 0 and below 1, not {shown(value)}.",
            hint=f"For 2 % write {name}=0.02.",
        )


DEFAULT_EVERY = Every(max_loss="5min", max_overhead=0.02)


class Schedule:
    """The memory of one `Every`: what was saved last, and what saves have cost.

    `written` may be called from the thread of the writer, `saved` from one who has a held snapshot written
    while the training does something else; all else from that of the training.
    """

    __slots__ = ("_budget", "_clock", "_every", "_next_episode", "_next_step", "_next_time", "_timed")

    def __init__(self, every: Every, clock: Clock, *, step: int = 0, episodes: int = 0) -> None:
        self._every = every
        self._clock = clock
        self._next_step = self._next_episode = self._next_time = NEVER
        max_loss = None if every.max_loss is None else seconds_of(every.max_loss, name="max_loss")
        self._budget = Budget(max_loss=max_loss, max_overhead=every.max_overhead)
        self._timed = not (every.seconds is None and max_loss is None and every.max_overhead is None)
        self.begin(step, episodes)

    def begin(self, step: int, episodes: int = 0) -> None:
        """Count from here, where training starts or goes on. What saves have cost is not forgotten."""
        now = self._clock()
        self._count(now, step, episodes)
        self._budget.begin(now)

    def due(self, step: int, episodes: int = 0) -> str:
        """Return why a save is due at this point, or an empty string. It stays due until `saved`."""
        if step >= self._next_step:
            return f"every {self._every.steps:,} steps"
        if episodes >= self._next_episode:
            return f"every {self._every.episodes:,} episodes"
        if self._timed:
            now = self._clock()
            if now >= self._next_time:
                return f"every {self._every.seconds:g} seconds"
            if self._budget.is_due(now):
                return self._budget.reason
        return ""

    def is_early(self) -> bool:
        """Return whether a save that is not due would be welcome at a point that is better than others. To be
        asked at each clean point; says yes once in a second at most."""
        return self._timed and self._budget.is_early(self._clock())

    def passed(self, step: int, episodes: int = 0) -> None:
        """Count from here although nothing was saved: the moment is over for all ranks."""
        self._count(self._clock(), step, episodes)

    def saved(self, step: int, episodes: int = 0, *, blocked: float) -> None:
        """Count from here: the state at this point has been copied, which took `blocked` seconds."""
        now = self._clock()
        self._count(now, step, episodes)
        self._budget.copied(now, blocked)

    def written(self, *, durable: float, busy: float) -> None:
        """Learn what a write has cost: the seconds until it was durable, and all that the writer took.

        A save counts as measured from here on. One that failed is not told.
        """
        self._budget.written(self._clock(), durable=durable, busy=busy)

    def conflict(self) -> str:
        """Return what a person should know about budgets that cannot hold, once; else an empty string."""
        return self._budget.conflict()

    def _count(self, now: float, step: int, episodes: int) -> None:
        every = self._every
        if every.steps is not None:
            self._next_step = (step // every.steps + 1) * every.steps
        if every.episodes is not None:
            self._next_episode = (episodes // every.episodes + 1) * every.episodes
        if every.seconds is not None:
            self._next_time = now + every.seconds

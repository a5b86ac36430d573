"""When to kill: drawn before the run, from a seed; pure.

A moment is a step to reach and a small delay after it. A kill also waits until work would be lost by it
(a step beyond the last commit): so each start of the script gets further than the one before, however
many kills there are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from unbroken.errors import ConfigError
from unbroken.proving.progress import Reached

EARLIEST, LATEST = 0.02, 0.95
"""The part of the step range in which kills are drawn: the last steps are left for the script's own
end, which would else win the race against the killer."""
LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True)
class KillMoment:
    """Kill at the first chance `delay` seconds after step `step` was reported."""

    step: int
    delay: float


def draw_moments(kills: int, *, seed: int, steps: int, seconds: float) -> tuple[KillMoment, ...]:
    """Draw `kills` moments over a run of `steps` steps that took `seconds`, in order of their steps."""
    if kills < 1:
        raise ConfigError("A proof needs at least one kill.", hint="Use --kills 1 or more.")
    if steps < 2:
        raise ConfigError(
            "The undisturbed run reported no steps, so there is no moment to kill it at.",
            hint="Does the script use Unbroken (a callback, or unbroken.Run)?",
        )
    draw = random.Random(seed)
    longest = min(LONGEST_DELAY_S, 0.01 * seconds)
    targets = sorted(max(1, round(draw.uniform(EARLIEST, LATEST) * steps)) for _ in range(kills))
    return tuple(KillMoment(step, draw.uniform(0.0, longest)) for step in targets)


class Trigger:
    """Decides, reading by reading, whether the moment has come."""

    def __init__(self, moment: KillMoment, *, needs_commit: bool) -> None:
        """`needs_commit`: wait for a commit after step 0, so that the restart has something to restore."""
        self._moment = moment
        self._needs_commit = needs_commit
        self._since: float | None = None

    def due(self, reached: Reached | None, now: float) -> bool:
        """Whether to kill now, at time `now`."""
        if reached is None or reached.step < self._moment.step:
            return False
        if self._needs_commit and reached.committed == 0:
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._moment.delay and reached.step > reached.committed

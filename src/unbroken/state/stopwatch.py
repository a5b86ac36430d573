"""How long each of several things took, of which one is done at a time.

What is done inside of something else counts for itself alone, so that the times add up to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Runs for one name at a time, from the first `switch` to `stop`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        """By name, in the order in which they were first switched to."""
        self._clock = clock
        self._name = ""
        self._since = 0.0

    def switch(self, name: str) -> None:
        """Let the time from now on count for `name`."""
        now = self._clock()
        if self._name:
            self.seconds[self._name] += now - self._since
        self.seconds.setdefault(name, 0.0)
        self._name, self._since = name, now

    def stop(self) -> None:
        """Let the time from now on count for nothing."""
        if self._name:
            self.seconds[self._name] += self._clock() - self._since
            self._name = ""

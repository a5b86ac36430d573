"""Tries again what failed in passing, a bounded number of times within a bounded time.

Meant for operations that may be repeated: after a lost response they run twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from unbroken.errors import StoreUnavailable

T = TypeVar("T")

_draw = random.SystemRandom().random
"""Not from the generator of the process: a save whose store fails in passing must not change what a training draws."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and for how long. Pauses double from `first` to `most` seconds, less a random part.

    The default outlasts a server that is started again, and ends before the notice of a preempted machine does.
    """

    attempts: int = 12
    first: float = 0.1
    most: float = 5.0
    within: float = 25.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = _draw

    def call(self, operation: Callable[[], T]) -> T:
        """Return what `operation` returns.

        Raises:
            StoreUnavailable: the last failure, with the number of attempts.
        """
        started = self.clock()
        attempt = 0
        while True:
            attempt += 1
            try:
                return operation()
            except StoreUnavailable as error:
                # Half of it at random: workers that failed together do not come back together.
                pause = min(self.most, self.first * 2 ** (attempt - 1)) * (0.5 + 0.5 * self.draw())
                if attempt >= self.attempts or self.clock() - started + pause > self.within:
                    if attempt == 1:
                        raise
                    raise StoreUnavailable(
                        f"{error.message} It was tried {attempt} times.", hint=error.hint, key=error.key
                    ) from None
                self.sleep(pause)

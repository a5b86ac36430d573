"""A snapshot that is held, copied and not written, while something goes on that may outlast a deadline.

A save can be made at a clean point only, and the next one may be one long `train()` away. So the state is
copied before that begins. A save that is asked for meanwhile, from any thread or from a signal handler,
writes this copy at once; the resumed run does again what came after it.

Invariant: whoever takes the snapshot has it alone: the training to drop it, or the one who asks to write it.
No lock is held while Python code of ours runs, so a signal handler that interrupts the training never waits
for it.

Not promised: that anything is held of several ranks, where one alone can save nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from unbroken.engine.dispatch import Taken


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """A save that was asked for. Two with the same reason are two."""

    reason: str


class Held:
    """Place for one snapshot in waiting. `put` and `drop` are the training's; `take` is anybody's."""

    def __init__(self) -> None:
        self._waiting: deque[Taken] = deque(maxlen=1)
        self._settled = threading.Event()
        self._error: BaseException | None = None
        self.present = False
        """Whether something was put here and not dropped yet, taken or not."""

    def put(self, taken: Taken) -> None:
        """Let `taken` wait."""
        self._settled.clear()
        self._error = None
        self.present = True
        self._waiting.append(taken)

    def take(self) -> Taken | None:
        """Return what waits, for the caller alone; None if there is nothing, or somebody was first."""
        try:
            return self._waiting.pop()
        except IndexError:
            return None

    def settle(self, error: BaseException | None = None) -> None:
        """Say that what was taken is in the writer's hands, or why it is not."""
        self._error = error
        self._settled.set()

    def drop(self) -> BaseException | None:
        """Have nothing wait any more; return what stopped one who took it to be written. Waits for that one to
        have handed it over: until then memory and writer are theirs."""
        if not self.present:
            return None
        self.present = False
        if self.take() is not None:
            return None
        self._settled.wait()
        return self._error


class Stretches:
    """How long what lies between two clean points took the last time, by name. Measured, never guessed."""

    def __init__(self, grace: float, clock: Callable[[], float]) -> None:
        self._grace = grace
        self._clock = clock
        self._last: dict[str, float] = {}

    def is_long(self, name: str) -> bool:
        """Return whether `name` took longer than the grace. What was never measured did not, unless
        there is no grace at all."""
        return self._grace == 0 or self._last.get(name, 0.0) > self._grace

    @contextmanager
    def measured(self, name: str) -> Generator[None]:
        """Measure what is done inside, whether or not it raises."""
        begun = self._clock()
        try:
            yield
        finally:
            self._last[name] = self._clock() - begun

    def began(self) -> float:
        """Return the time now, for `ended`."""
        return self._clock()

    def ended(self, name: str, began: float) -> None:
        """Note that `name`, which began then, is over."""
        self._last[name] = self._clock() - began

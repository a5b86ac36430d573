"""The steps of a loop that a person writes, as an iterator: restore, save at the top, end.

Knows an engine's way through a training and nothing of what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from unbroken.errors import ConfigError


class SteppedLoop(Protocol):
    """What an iteration over steps needs of the run that it belongs to."""

    def begin(self, total: int) -> int:
        """Restore what was saved and return the step to go on with, towards `total`."""
        ...

    def at_top(self, step: int) -> None:
        """Nothing but what is captured carries over from before `step`: save if it is time."""
        ...

    def is_over(self, step: int, total: int) -> bool:
        """Return whether no iteration follows."""
        ...

    def end(self, step: int) -> None:
        """Commit the end and give the run back."""
        ...


class FramedLoop:
    """The loop of a run, which begins in the frame where its steps were asked for. `begin` gets that frame and the
    total; if it raises, it gets them once more."""

    def __init__(
        self,
        frame: FrameType,
        *,
        begin: Callable[[FrameType, int], int],
        at_top: Callable[[int], None],
        end: Callable[[int], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._frame: FrameType | None = frame
        self._begin = begin
        self._at_top = at_top
        self._end = end
        self._stopped = stopped

    def begin(self, total: int) -> int:
        assert self._frame is not None
        step = self._begin(self._frame, total)
        self._frame = None  # it holds all that the script has
        return step

    def at_top(self, step: int) -> None:
        self._at_top(step)

    def is_over(self, step: int, total: int) -> bool:
        return step >= total or self._stopped()

    def end(self, step: int) -> None:
        self._end(step)


class Steps(Iterator[int]):
    """The steps of one loop. Restores on the first call; saves at the top of each iteration.

    Invariant: what is done counts only once it is done. A call that raised is repeated by the next one: no
    step is left out, and no loop is over without the checkpoint of its end.
    """

    def __init__(self, loop: SteppedLoop, total: int) -> None:
        self._loop = loop
        self._total = checked_total(total)
        self._begun = False
        self._next = 0
        self._ended = False

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        if self._ended:
            raise StopIteration
        if not self._begun:
            self._next = self._loop.begin(self._total)
            self._begun = True
        step = self._next
        if self._loop.is_over(step, self._total):
            self._loop.end(step)
            self._ended = True
            raise StopIteration
        self._loop.at_top(step)
        self._next = step + 1
        return step


def checked_total(total: int) -> int:
    """Return `total` if it can be a number of steps; raise ConfigError if not."""
    given: object = total
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(
            f"The number of steps must be a whole number, not {given!r}.",
            hint="Give the number of steps of the whole run, over every start.",
        )
    return total

"""How long what lies between two clean points took the last time, by name: a `train()`, an evaluation.

Measured, never guessed, and only in this process.

Not promised: how long it takes the next time; and two stretches that overlap, of which one is over earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Stretches:
    """Measures what is begun until it is ended; `clock` tells seconds."""

    def __init__(self, grace: float, clock: Callable[[], float]) -> None:
        self._grace = grace
        self._clock = clock
        self._last: dict[str, float] = {}
        self._under_way: tuple[str, ...] = ()
        self._since = 0.0

    def is_long(self, name: str) -> bool:
        """Return whether `name` took longer than the grace. What was never measured did not, unless
        there is no grace at all."""
        return self._grace == 0 or self._last.get(name, 0.0) > self._grace

    def begin(self, names: Iterable[str]) -> None:
        """These come next, together."""
        self._under_way, self._since = tuple(names), self._clock()

    def end(self) -> None:
        """What was begun is over. Costs nothing where nothing was."""
        if self._under_way:
            took = self._clock() - self._since
            self._last.update(dict.fromkeys(self._under_way, took))
            self._under_way = ()

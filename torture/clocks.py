"""Clocks that jump, forth and back, at every moment at which one is read: nothing may be decided by them.

The run has leftovers of a write that was cut off, with the time at which they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import Tree
from torture.disks import laid_out, room
from torture.life import Promises, temporary_tokens
from torture.recovery import recover
from torture.returned import copy_of, old_run
from torture.trouble import demand_that_it_went_on, endure
from unbroken.store.local import LocalStore

NOW = 1.7e9
HOUR = 3600.0
YEAR = 365 * 24 * HOUR
JUMPS = (-10 * YEAR, -NOW, -HOUR, -1.0, 1.0, HOUR, 10 * YEAR)
"""Seconds."""
_CUT_OFF = "run/packs/e1/.tmp-00000000000000ff"


class Clock:
    """Goes on by a second whenever it is read, and jumps by `jump` seconds at the reading of number `at`."""

    def __init__(self, at: int = -1, jump: float = 0.0) -> None:
        self.read = 0
        self._at = at
        self._jump = jump
        self._now = NOW

    def __call__(self) -> float:
        """Return the seconds."""
        self._now += 1.0
        if self.read == self._at:
            self._now += self._jump
        self.read += 1
        return self._now


def cases() -> Iterator[Case]:
    """Yield each jump at each reading of the clock in a second start."""
    tree, promises = old_run()
    tree = {**tree, _CUT_OFF: b"cut off"}
    counting = Clock()
    with room() as folder:
        _live(folder, tree, copy_of(promises), counting)
    for at in range(counting.read):
        for jump in JUMPS:
            yield Case(
                "clock jumps",
                f"by {jump:.0f} s at reading {at}",
                f"clock {at} {jump}",
                partial(_run, tree, promises, at, jump),
            )


def _live(folder: Path, tree: Tree, promises: Promises, clock: Callable[[], float]) -> None:
    laid_out(tree, folder)
    store = LocalStore(folder / "run", token=temporary_tokens(3), clock=clock)
    trouble = endure(store, promises, clock=clock)
    demand_that_it_went_on(trouble, "a jump of the clock")
    if trouble.errors:
        raise trouble.errors[0]


def _run(tree: Tree, promises: Promises, at: int, jump: float, folder: Path) -> int:
    made, clock = copy_of(promises), Clock(at, jump)
    _live(folder, tree, made, clock)
    assert clock.read > at, "the clock was not read so often"
    return recover(folder / "run", made, clock=clock)

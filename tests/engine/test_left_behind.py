"""A kill at any operation on files of the last save and of the end; the next start leaves nothing that nobody needs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import unbroken
from tests.engine.children import die, in_child
from unbroken.proving.leftovers import left_in
from unbroken.repo.repository import jobs
from unbroken.store.local import LocalStore
from unbroken.testing.faulty_system import Intercepted

T = TypeVar("T")
LAST = 60
"""So many operations before the end are tried. A save takes fewer."""


class Dying(Intercepted):
    """Counts the calls that change something, and kills the process before the `at`-th."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.calls = 0
        self._at = at

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        if name not in ("open", "preadv", "close"):
            self.calls += 1
            if self.calls == self._at:
                die()
        return call()


def calls_of(root: Path, at: int | None = None) -> int | None:
    """Train in a process of its own, which dies before its `at`-th call; None if it did, else how many there were."""
    counted = root.parent / "calls"

    def training() -> None:
        system = Dying(at)
        with_system = partialmethod(LocalStore.__init__, system=system)
        LocalStore.__init__ = with_system  # type: ignore[assignment, method-assign]
        weights, rng = np.zeros(4), np.random.default_rng(0)
        run = unbroken.Run(root, every=5, keep_last=2)
        run.track(weights=weights, rng=rng)
        for _ in run.steps(20):
            weights += rng.normal(size=4)
        counted.write_text(str(system.calls))

    ended = in_child(training)
    assert ended in (0, -signal.SIGKILL)
    return int(counted.read_text()) if ended == 0 else None


@pytest.mark.usefixtures("capfd")
def test_whenever_a_training_is_killed_near_its_end_the_next_start_clears_up(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "undisturbed")
    assert calls is not None
    assert calls > LAST
    for at in range(calls - LAST, calls):
        root = tmp_path / str(at)
        if calls_of(root, at) is None:
            assert calls_of(root) is not None
        assert jobs(root) == [root.name]
        assert left_in(root) == (), at

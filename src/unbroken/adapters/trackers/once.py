"""Steps that are done again are logged once, where somebody else calls the tracker's library: for loggers of frameworks.

W&B and MLflow keep what a killed process has logged, and take nothing back. So a training that goes on leaves out what
stands there already, and only that: as soon as something comes that is new, nothing is left out any more, whatever its
step. A logger may count in steps that do not rise.

Invariant: what is left out was logged before; where nobody can tell, it is logged again.

Not promised: that what stands there is what would have been logged, in a training that is not exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from unbroken.adapters.trackers.going_on import Standing


class Held(Protocol):
    """What stands where a logger logs to."""

    def new_of(self, row: Mapping[str, Any], step: int | None) -> Mapping[str, Any]:
        """Return what of a row does not stand there already."""
        ...


class HeldByWandb:
    """What a run of W&B holds that goes on: its newest row, as the summary tells. `axis` is the name under which the
    logger gives the step; W&B counts rows by itself. Offline nothing is known of what other processes have logged."""

    def __init__(self, run: Any, *, axis: str) -> None:
        self._newest: float | None = None
        self._last: dict[str, Any] = {}
        if getattr(run, "resumed", False):
            self._last = {str(name): run.summary.get(name) for name in list(run.summary.keys())}
            self._newest = _number(self._last.get(axis))

    def new_of(self, row: Mapping[str, Any], step: int | None) -> Mapping[str, Any]:
        """Return the row, or nothing of it."""
        return {} if step is not None and self._has(row, step) else row

    def _has(self, metrics: Mapping[str, Any], step: int) -> bool:
        if self._newest is None:
            return False
        if step < self._newest:
            return True
        # Of the newest step there may be some rows and not yet others.
        if step == self._newest and all(
            _same(value, self._last.get(name)) for name, value in metrics.items()
        ):
            return True
        self._newest = None
        return False


class HeldByMlflow:
    """What a run of MLflow holds that goes on: the newest step of each metric. Asks for it at once."""

    def __init__(self, run_id: str, client: Any) -> None:
        self._steps = dict(Standing().steps(run_id, lambda: client))

    def new_of(self, row: Mapping[str, Any], step: int | None) -> Mapping[str, Any]:
        """Return the points of a row that do not stand there. MLflow logs at step 0 what is given none."""
        return {name: value for name, value in row.items() if not self._has(name, step or 0)}

    def _has(self, name: str, step: int) -> bool:
        newest = self._steps.get(name)
        if newest is None:
            return False
        if step <= newest:
            return True
        del self._steps[name]
        return False


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _same(one: Any, other: Any) -> bool:
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return False

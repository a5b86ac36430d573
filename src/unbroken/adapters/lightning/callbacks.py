"""The other callbacks of a training: which of them have state, how each is named, and a clock among them.

They are named by class, in order: `EarlyStopping`, `EarlyStopping#2`. Progress bars and summaries only show
what others know.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelSummary, ProgressBar, Timer
from lightning.pytorch.trainer.states import RunningStage

from unbroken.state.nodes import Value
from unbroken.state.policy import Captor

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

CLOCK = frozenset({"_start_time", "_end_time", "_offset"})
"""Attributes of a `Timer` that hold readings of a clock which other processes do not have."""


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the callbacks of a trainer, which it gets only in its constructor's helpers."""
    held: Any = trainer
    return list(held.callbacks)


def with_state(trainer: Trainer, ours: Callback) -> dict[str, Callback]:
    """Return the callbacks to capture, by name."""
    found: dict[str, Callback] = {}
    count: Counter[str] = Counter()
    for callback in callbacks_of(trainer):
        if callback is ours or isinstance(callback, (ProgressBar, ModelSummary)):
            continue
        name = type(callback).__qualname__
        count[name] += 1
        found[name if count[name] == 1 else f"{name}#{count[name]}"] = callback
    return found


class TimerCaptor:
    """Captor of `Timer`: what it has measured over all starts, without the time between them."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Timer, walk: Walk) -> dict[str, Value]:
        return {"elapsed": obj.time_elapsed()} if walk.contents else {}

    def plan(self, extra: dict[str, Value], obj: Timer, graft: Graft) -> None:
        elapsed = extra.get("elapsed")
        if isinstance(elapsed, (int, float)):
            graft.write(_wind, obj, elapsed)
        else:
            graft.error("was saved without the time that it has measured.")


def _wind(timer: Any, elapsed: float) -> None:
    timer._offset = elapsed
    timer._start_time[RunningStage.TRAINING] = time.monotonic()


_captor = TimerCaptor()


def timer_rule(obj: object) -> Captor | None:
    """Return the captor of a `Timer`, None for anything else."""
    return _captor if isinstance(obj, Timer) else None

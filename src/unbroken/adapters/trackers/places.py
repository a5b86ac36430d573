"""From what a script holds of a tracker to the place where marks are left.

Not promised: that it can be written to. That shows when the first mark is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unbroken.adapters.trackers.board import Board, is_board
from unbroken.adapters.trackers.mlflow import FindsMlflow, MlflowRun, is_mlflow
from unbroken.adapters.trackers.wandb import FindsWandb, WandbRun, is_wandb
from unbroken.engine.trackers.place import Finders, Place
from unbroken.errors import ConfigError

IN_USE: Finders = (FindsWandb(), FindsMlflow())
"""Those that can be found, since their libraries know which run is going on. A writer of TensorBoard is handed over."""


def place_of(tracker: object, *, first: Callable[[int], int] | None = None) -> Place:
    """Return the place that a tracker is. `first` counts the steps of a writer of TensorBoard; see `Board`.

    Raises:
        ConfigError: it is none that is known.
    """
    if is_board(tracker):
        return Board(tracker, first=first)
    if first is not None:
        raise ConfigError("first= counts the steps of a SummaryWriter.", hint="Leave it out.")
    known: Any = tracker
    if is_wandb(tracker):
        return WandbRun(known)
    if is_mlflow(tracker):
        return MlflowRun(known.info.run_id)
    raise ConfigError(
        f"A {type(tracker).__qualname__} is no tracker that is known.",
        hint="Give a SummaryWriter, what wandb.init() has returned, or what mlflow.start_run() has.",
    )

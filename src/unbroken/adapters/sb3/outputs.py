"""What a training shows of itself while it goes on: TensorBoard's directory and progress bars.

SB3 begins a new TensorBoard directory at each `learn()`. A run that goes on continues the curve of its
first start instead: in the same directory, what was written after the checkpoint marked as purged.

Not promised: other outputs of the logger. A CSV or JSON file is begun anew by SB3 at each start.
"""

from __future__ import annotations

import os
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat

from unbroken.adapters.sb3.callbacks import below

TENSORBOARD = "tensorboard"


def record_outputs(model: BaseAlgorithm) -> dict[str, str]:
    """Return where the outputs of this start go."""
    board = _board(model)
    return {} if board is None else {TENSORBOARD: os.path.abspath(board.writer.log_dir)}


def go_on(model: BaseAlgorithm, root: BaseCallback, recorded: dict[str, str]) -> None:
    """Let the outputs go on where those of the checkpoint stood."""
    board, first = _board(model), recorded.get(TENSORBOARD, "")
    if board is not None and os.path.isdir(first):
        _continue(model, board, first)
    elif board is not None:
        recorded.update(record_outputs(model))
    for callback in below(root):
        if isinstance(callback, ProgressBarCallback):
            callback.pbar.update(model.num_timesteps - model._num_timesteps_at_start)


def _board(model: BaseAlgorithm) -> TensorBoardOutputFormat | None:
    outputs = getattr(getattr(model, "_logger", None), "output_formats", ())
    return next((output for output in outputs if isinstance(output, TensorBoardOutputFormat)), None)


def _continue(model: BaseAlgorithm, board: Any, first: str) -> None:
    begun = os.path.abspath(board.writer.log_dir)
    if begun == first:
        return
    writer = type(board.writer)
    board.writer.close()
    _discard(begun)
    # What was logged at the checkpoint's own step was logged before it.
    board.writer = writer(log_dir=first, purge_step=model.num_timesteps + 1)
    model.logger.dir = first


def _discard(folder: str) -> None:
    """Remove the directory that SB3 has just begun, if nothing but its empty event file is in it."""
    names = os.listdir(folder)
    if all(name.startswith("events.out.tfevents.") for name in names) and len(names) <= 1:
        for name in names:
            os.remove(os.path.join(folder, name))
        os.rmdir(folder)

"""What a training shows of itself while it goes on: TensorBoard's directory and progress bars.

SB3 begins a new TensorBoard directory at each `learn()`. A run that goes on continues the curve of its
first start instead: in the same directory, what was written after the checkpoint marked as purged. The
logger's other files come back with its state: see `logs`.

Not promised: what programs that do not read TensorBoard's marks make of the events of a part that was
redone, and outputs of the user's own.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, ProgressBarCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat

from unbroken.adapters.sb3.callbacks import below
from unbroken.adapters.sb3.evaluations import write_scores
from unbroken.adapters.sb3.logs import drop_figures
from unbroken.adapters.trackers.board import Board
from unbroken.engine.engine import CheckpointEngine

TENSORBOARD = "tensorboard"


def record_outputs(model: BaseAlgorithm) -> dict[str, str]:
    """Return where the outputs of this start go."""
    board = _board(model)
    return {} if board is None else {TENSORBOARD: os.path.abspath(board.writer.log_dir)}


def go_on(model: BaseAlgorithm, root: BaseCallback, recorded: dict[str, str]) -> None:
    """Let the outputs go on where those of the checkpoint stood."""
    drop_figures(model.logger)
    board, first = _board(model), recorded.get(TENSORBOARD, "")
    if board is not None and os.path.isdir(first):
        _continue(model, board, first)
    elif board is not None:
        recorded.update(record_outputs(model))
    for callback in below(root):
        if isinstance(callback, ProgressBarCallback):
            _advance(callback.pbar, model.num_timesteps - model._num_timesteps_at_start)
        elif isinstance(callback, EvalCallback):
            write_scores(callback)


def mark_in_board(engine: CheckpointEngine, model: BaseAlgorithm) -> None:
    """Have checkpoints and restarts marked in TensorBoard, where the training writes it."""
    board = _board(model)
    if board is not None:
        engine.tell(Board(board.writer, purges=False))  # `go_on` has voided what comes again


def _board(model: BaseAlgorithm) -> TensorBoardOutputFormat | None:
    outputs = getattr(getattr(model, "_logger", None), "output_formats", ())
    return next((output for output in outputs if isinstance(output, TensorBoardOutputFormat)), None)


def _continue(model: BaseAlgorithm, board: Any, first: str) -> None:
    begun = os.path.abspath(board.writer.log_dir)
    # What was logged at the checkpoint's own step was logged before it.
    purged = model.num_timesteps + 1
    if begun == first:  # a logger of the user's own, or `reset_num_timesteps=False`
        events = importlib.import_module("torch.utils.tensorboard.writer")
        start = events.SessionLog(status=events.SessionLog.START)
        board.writer.file_writer.add_event(events.Event(step=purged, session_log=start), step=purged)
        board.writer.flush()
        return
    writer = type(board.writer)
    board.writer.close()
    _discard(begun)
    board.writer = writer(log_dir=first, purge_step=purged)
    model.logger.dir = first


def _advance(bar: Any, steps: int) -> None:
    """Let a bar begin at `steps`; its speed is that of this start."""
    bar.n = bar.initial = steps
    bar.refresh()


def _discard(folder: str) -> None:
    """Remove the directory that SB3 has just begun, if nothing but its empty event file is in it."""
    names = os.listdir(folder)
    if all(name.startswith("events.out.tfevents.") for name in names) and len(names) <= 1:
        for name in names:
            os.remove(os.path.join(folder, name))
        os.rmdir(folder)

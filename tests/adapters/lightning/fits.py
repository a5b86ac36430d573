"""Trainings in the process of a test, ended by an exception in the place of a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
from lightning.pytorch.callbacks import Callback, ProgressBar

from unbroken.adapters.lightning import session
from unbroken.lightning import CheckpointCallback, Every
from unbroken.repo.repository import Repository

from .trainings import Training

quiet = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning.*",
    "ignore::FutureWarning:lightning.*",
    "ignore::DeprecationWarning:lightning.*",
)
"""What Lightning says of loaders without workers, of missing loggers and of PyTorch's newer names."""


class Cut(Exception):
    pass


class Bar(ProgressBar):
    """Lets every save be waited for, so that none is left out because the machine is busy; and ends a training
    when `cut` batches have been trained on. A progress bar is no part of a training's state."""

    def __init__(self, ours: CheckpointCallback, cut: int | None) -> None:
        super().__init__()
        self._ours = ours
        self._left = 2**62 if cut is None else cut

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        session = self._ours._session
        if session is not None and session._running is not None:
            session._running.wait()
        self._left -= 1
        if self._left < 0:
            raise Cut


def trainer_of(training: Training, *callbacks: Callback, **options: Any) -> Any:
    """Return a trainer with these callbacks in front of the training's own."""
    _, given, others = training
    merged: dict[str, Any] = {"accelerator": "cpu", "enable_checkpointing": False, **given, **options}
    return lightning.Trainer(
        logger=False, enable_model_summary=False, callbacks=[*callbacks, *others], **merged
    )


def fit(
    training: Training,
    root: Path,
    *more: Callback,
    every: int | Every = 1,
    cut_at: int | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Train like a process that has just started; return the module and the trainer."""
    session._finished.clear()
    ours = CheckpointCallback(root, job="job", every=every, keep_last=1000)
    trainer = trainer_of(training, ours, Bar(ours, cut_at), *more, **options)
    trainer.fit(training[0])
    return training[0], trainer


def cut(training: Training, root: Path, at: int, *more: Callback, **options: Any) -> None:
    """Train, and be gone after `at` batches."""
    with pytest.raises(Cut):
        fit(training, root, *more, cut_at=at, **options)


def history(root: Path) -> list[tuple[int, str]]:
    """Return step and position of every checkpoint, the oldest first."""
    return [(commit.step, commit.position) for commit in reversed(Repository.open(root, "job").commits())]

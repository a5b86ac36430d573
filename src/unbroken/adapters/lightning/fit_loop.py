"""Lightning's training loop, seen from outside: where it stands, and how it is made to stand elsewhere.

The top of `_TrainingEpochLoop.advance` is the clean point: the batch before it is over with its validation,
its schedulers and its logging, the next one is not fetched yet, and no local variable carries anything over.
Lightning's own hooks come earlier: at `on_train_batch_end` other callbacks, the module, the counters and the
validation are still to come, and nothing could do them over.

A restore happens where the first epoch would begin, so that every callback has been told that training
starts. A run that goes on inside an epoch leaves out what the beginning of an epoch does.

Everything is done by attributes of these loop objects, which are gone when the loop ends or raises.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loops.fit_loop import _FitLoop

from unbroken.capture.hooks import Hook

HOOKS = frozenset({"advance", "on_advance_start", "on_run_end", "on_run_start", "reset"})
"""Attributes that may stand on a loop while it trains."""


class Place(str, Enum):
    """Where the loop stands."""

    START = "start"
    """Between two epochs."""
    STEP = "step"
    """Inside an epoch, where the next batch is about to be fetched."""
    END = "end"
    """Training is over; nobody has been told yet."""


class Listener(Protocol):
    """Who is told. Each call comes at a clean point."""

    def begin(self) -> Place:
        """Everything is set up. Restore, and return where the loop is to go on."""
        ...

    def at_batch(self) -> None:
        """The next batch is about to be fetched."""
        ...

    def finished(self, *, skipped: bool) -> None:
        """The loop is over; `skipped`: it was over when it began."""
        ...


class FitLoop:
    """The loop of one `fit` call. Hooks are in place from `install` to the end of the loop."""

    def __init__(self, loop: _FitLoop, listener: Listener) -> None:
        self._loop: Any = loop
        self._epoch_loop: Any = loop.epoch_loop
        self._listener = listener
        self._begun = False
        self._entering = False
        """Whether the loop is on its way to the middle of an epoch."""
        self._over = False
        self._epoch = Hook(loop, "on_advance_start", self._begin_epoch, keeper=self)
        self._end = Hook(loop, "on_run_end", self._end_run, keeper=self)
        self._reset = Hook(self._epoch_loop, "reset", self._reset_epoch, keeper=self)
        self._iterate = Hook(self._epoch_loop, "on_run_start", self._start_iteration, keeper=self)
        self._advance = Hook(self._epoch_loop, "advance", self._next_batch, keeper=self)
        self._hooks = (self._epoch, self._end, self._reset, self._iterate, self._advance)

    def install(self) -> None:
        """Put the hooks in place."""
        for hook in self._hooks:
            hook.install()

    def remove(self) -> None:
        """Take every hook away. May be called twice."""
        for hook in self._hooks:
            hook.remove()

    def terminated_at(self) -> Place | None:
        """Return where the loop stands when Lightning ends it because of SIGTERM: after a batch with all that
        belongs to it, or after an epoch. None inside a validation, which could not be continued there."""
        if self._loop.trainer.validating:
            return None
        return Place.START if self._epoch_loop._is_training_done else Place.STEP

    def _begin_epoch(self) -> None:
        if not self._begun:
            self._begun = True
            place = self._listener.begin()
            if self._loop.done:
                self._over = place is Place.END
                raise StopIteration  # which is how this loop is left
            if place is Place.STEP:
                self._entering = True
                self._show_progress()
                return
        self._epoch.original()

    def _reset_epoch(self) -> None:
        if not self._entering:
            self._reset.original()

    def _start_iteration(self, fetcher: Any) -> None:
        if not self._entering:
            self._iterate.original(fetcher)
            return
        # The rest of what Lightning does here has come back with the state.
        fetcher._start_profiler = self._epoch_loop._on_before_fetch
        fetcher._stop_profiler = self._epoch_loop._on_after_fetch

    def _next_batch(self, fetcher: Any) -> None:
        if self._entering:
            self._entering = False  # the very point at which the checkpoint was taken
        else:
            self._listener.at_batch()
        self._advance.original(fetcher)

    def _end_run(self) -> None:
        self._listener.finished(skipped=self._over)
        self.remove()
        self._end.original()

    def _show_progress(self) -> None:
        """Let progress bars begin the epoch, which they show and do not count."""
        trainer = self._loop.trainer
        for callback in trainer.callbacks:
            if isinstance(callback, ProgressBar):
                callback.on_train_epoch_start(trainer, trainer.lightning_module)

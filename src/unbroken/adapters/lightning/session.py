"""One `fit` of one run: the training loop on one side, the engine on the other.

Not promised: two trainings of one run at the same time in one process; the second ends the first's session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from unbroken.adapters.lightning import files
from unbroken.adapters.lightning.callbacks import callbacks_of
from unbroken.adapters.lightning.fit_loop import FitLoop, Place
from unbroken.adapters.lightning.loggers import Loggers
from unbroken.adapters.lightning.ranks import Meeting, Signal
from unbroken.adapters.lightning.source import FitSource, parts
from unbroken.adapters.trackers.places import IN_USE
from unbroken.capture.watched import WatchedEnvironments, is_environment
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.errors import UnbrokenError
from unbroken.state.snapshot import Promise

_finished: dict[tuple[str, str], int] = {}
"""How many trainings of each run this process has behind it."""
_open: dict[tuple[str, str], Session] = {}


class Metrics(Mapping[str, float]):
    """What the module has logged last, read only when somebody looks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def _now(self) -> dict[str, float]:
        # Not `trainer.callback_metrics`: it computes means for whoever looks, and remembers that it did.
        logged = self._trainer._logger_connector._callback_metrics
        return {name: float(value) for name, value in logged.items() if torch.as_tensor(value).numel() == 1}

    def __getitem__(self, name: str) -> float:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __bool__(self) -> bool:
        return True


class Session:
    """Listens to a loop and drives an engine. `ours` is the callback that the user put in."""

    def __init__(self, trainer: Trainer, ours: Callback, settings: Settings, meeting: Meeting) -> None:
        self.report: ResumeReport | None = None
        self._trainer = trainer
        self._ours = ours
        self._settings = settings
        self._meeting = meeting
        self._signal = Signal(trainer)
        self._loop = FitLoop(trainer.fit_loop, self)
        self._watched = WatchedEnvironments()
        self._metrics = Metrics(trainer)
        self._running: CheckpointEngine | None = None
        self._source: FitSource | None = None
        overridden = settings.overridden(os.environ)
        self._key = (os.path.abspath(overridden.root), overridden.job)
        self._segment = _finished.get(self._key, 0)
        self._loggers = Loggers(trainer, settings, segment=self._segment)

    def prepare(self) -> None:
        """Watch the environments before any data is fetched, and the signal before Lightning takes it."""
        self._signal.install()
        self.watch()

    def open(self) -> None:
        """Put the hooks in place; everything else waits for the first epoch."""
        before = _open.get(self._key)
        if before is not None:
            before.abandoned(None)
        _open[self._key] = self
        self._loop.install()

    def watch(self) -> dict[str, Promise]:
        """Put in place what the capture of the environments needs, of those that are there by now."""
        found = {name: value for name, value in parts(self._trainer) if is_environment(value)}
        return self._watched.watch(found)

    def begin(self) -> Place:
        """Restore, if there is anything, and say so."""
        trainer = self._trainer
        self._set_up_validation()
        promises = self.watch()
        self._source = source = FitSource(trainer, self._ours, promises, self._loggers)
        engine = self._engine(source)
        self._loggers.tell(engine)
        report = engine.resume(step=trainer.global_step)
        self._loggers.begun(report)
        self._running = engine
        place = Place(source.position["place"])
        wanted = trainer.max_steps
        if report.restored and place is Place.END and wanted > trainer.global_step:
            report = replace(report, goes_on_to=wanted)
        self.report = report
        if trainer.is_global_zero:
            self._say(report.text)
        return place if report.restored else Place.START

    def at_batch(self) -> None:
        """Save if it is time."""
        self._stand(Place.STEP)
        self._source_now().stand()
        self._live().step(self._trainer.global_step, metrics=self._metrics)
        self._signal.end_all()

    def finished(self, *, skipped: bool) -> None:
        """Commit the end, unless it was an end already when this process came."""
        engine, step = self._live(), self._trainer.global_step
        self._stand(Place.END)
        try:
            with engine:
                try:
                    if not skipped:
                        engine.save(step, reason="end of training", position="end", metrics=self._metrics)
                finally:
                    # An error may be of a save before. Were the end lost, a further `fit` would begin another
                    # training after it.
                    if skipped or engine.is_finished:
                        _finished[self._key] = _finished.get(self._key, 0) + 1
        finally:
            self._leave()

    def terminated(self, error: SIGTERMException) -> None:
        """Save what the last batch has come to, and give the run back: Lightning ends here because of SIGTERM."""
        engine, place = self._running, self._loop.terminated_at()
        if engine is not None:
            engine.preemption.heard_from("SIGTERM")
            error.code = engine.settings.exit_code  # as for every other signal; Lightning has none
        if engine is not None and place is not None:
            self._stand(place)
            reason = engine.preemption.note
            try:
                engine.save(self._trainer.global_step, reason=reason, metrics=self._metrics, wait=True)
            except UnbrokenError as failure:
                self._say(f"unbroken: {failure}")  # the process ends all the same, and by what it was told
        self.abandoned(error)

    def abandoned(self, error: BaseException | None) -> None:
        """Give the run back without an end; what is being written is still written."""
        engine = self._running
        self._leave()
        if engine is not None and engine.preemption.told:
            self._signal.stay()
        try:
            if engine is not None:
                engine.__exit__(None if error is None else type(error), error, None)
        finally:
            self._signal.remove()

    def _engine(self, source: FitSource) -> CheckpointEngine:
        world = self._meeting.world(self._trainer, self._signal.meet(self._meeting.sync_timeout))
        return CheckpointEngine(source, self._settings, segment=self._segment, world=world, finders=IN_USE)

    def _live(self) -> CheckpointEngine:
        assert self._running is not None
        return self._running

    def _source_now(self) -> FitSource:
        assert self._source is not None
        return self._source

    def _stand(self, place: Place) -> None:
        self._source_now().position["place"] = place.value

    def _leave(self) -> None:
        self._loop.remove()
        self._loggers.release()
        self._watched.release()
        files.release(callbacks_of(self._trainer))
        self._running = None
        if _open.get(self._key) is self:
            del _open[self._key]

    def _set_up_validation(self) -> None:
        """Have the validation's loaders built, as Lightning does where the first epoch ends in one: what they
        hold is to be restored, too."""
        trainer: Any = self._trainer
        loop = trainer.fit_loop.epoch_loop.val_loop
        if loop._combined_loader is None and trainer.enable_validation:
            trainer.validating = True
            loop.setup_data()
            trainer.training = True

    @staticmethod
    def _say(*lines: str) -> None:
        say(*lines)

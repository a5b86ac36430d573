"""Marks checkpoints and restarts in the trackers that the training is using: TensorBoard, W&B, MLflow.

W&B and MLflow are found by themselves, where the script has loaded them and begun a run; others are named by `tell`.
Which runs these are goes with every checkpoint, so that the next start can go on in them.

Invariants: no library is imported that the script has not; nothing here costs a training a checkpoint, or a start:
what fails is heard once for each place; marks are left in a thread that nobody waits for, but for a few seconds at the
end; a start is marked before the checkpoints that follow it.

Not promised: marks of the last moments before a kill.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from unbroken.engine.monitoring.worker import Worker
from unbroken.engine.observer import Saved
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.mlflow import mlflow_in_use
from unbroken.engine.trackers.place import Place
from unbroken.engine.trackers.recorded import told
from unbroken.engine.trackers.wandb import wandb_in_use
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository

LAST_SECONDS = 5.0
"""How long the end of a run waits for the last marks."""
MOST_WAITING = 1000
"""Marks that wait while a tracker does not answer; of more the oldest go."""


class TrackerWarning(UserWarning):
    """Marks cannot be left in a tracker, or a start logs to another one than the run did before. The training and
    its checkpoints go on."""


class Trackers:
    """The observer of a run that marks what it hears; `speaks` is False for ranks that are not the first."""

    def __init__(self, settings: Settings, *, segment: int, speaks: bool) -> None:
        self._settings = settings
        self._segment = segment
        self._wanted = frozenset(settings.trackers) if speaks else frozenset[str]()
        self._places: list[Place] = []
        self._named: list[Place] = []
        """Those of them that somebody has named."""
        self._identities: dict[str, dict[str, str]] = {}
        self._report: ResumeReport | None = None
        self._early: list[Saved] = []
        """What was saved before the start was known: its own checkpoint."""
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque(maxlen=MOST_WAITING)
        self._worker = Worker(self._leave, name="unbroken-trackers", rest=0.0)
        self._owner = os.getpid()
        self._problems: dict[str, str] = {}
        self._spoken: set[str] = set()

    def identities(self) -> dict[str, dict[str, str]]:
        """Return what goes with a checkpoint: the runs that the training logs to by now, or did last."""
        return self._identities

    def tell(self, place: Place) -> None:
        """Leave marks in this place, too; if the training has begun already, of its start as well."""
        if place.kind in self._wanted:
            self._named.append(place)
            self._add(place)

    def starting(self) -> None:
        """Look which trackers are in use."""
        self._look()

    def started(self, report: ResumeReport) -> None:
        """Mark the start, and what was saved for it."""
        self._look()
        self._report = report
        for place in self._places:
            self._mark_start(place, report)
        if self._identities and report.commit is not None and not report.origin:
            self._wait("a look at the run", partial(self._compare, report.commit))

    def not_started(self, error: BaseException) -> None:
        """Do nothing: no start has come of it."""

    def saved(self, save: Saved) -> None:
        """Mark a checkpoint."""
        if self._report is None:
            self._early.append(save)
            return
        for place in list(self._places):
            self._mark(place, save)

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """Do nothing: there is nothing to be marked."""

    def speak(self) -> None:
        """Look again, since a tracker may have been begun meanwhile, and warn of each that fails, once."""
        self._look()
        for title in self._problems.keys() - self._spoken:
            self._spoken.add(title)
            warnings.warn(TrackerWarning(self._problems[title]), stacklevel=4)

    def ended(self) -> None:
        """Have the last marks left."""
        if os.getpid() != self._owner:
            return
        for place in self._places:
            self._wait(place.title, place.flush)
        if not self._worker.finish(LAST_SECONDS):
            late = TimeoutError(f"no answer within {LAST_SECONDS:g} seconds")
            self._failed(self._waiting[0][0] if self._waiting else "a tracker", late)
        # Nobody calls any more who could be warned.
        for title in self._problems.keys() - self._spoken:
            self._spoken.add(title)
            sys.stderr.write(f"unbroken: {self._problems[title]}\n")

    def _look(self) -> None:
        """Take up the runs of W&B and MLflow that this thread logs to; leave alone those that are over."""
        for kind, found_in in (("wandb", wandb_in_use), ("mlflow", mlflow_in_use)):
            if kind not in self._wanted or any(place.kind == kind for place in self._named):
                continue
            with self._passing(kind):
                found = found_in(sys.modules)
                known = next((place for place in self._places if place.kind == kind), None)
                if found is not None and known is not None and found.identity == known.identity:
                    continue
                if known is not None:
                    self._places.remove(known)
                if found is not None:
                    self._add(found)

    def _add(self, place: Place) -> None:
        self._places.append(place)
        if place.identity:
            self._identities = {**self._identities, place.kind: dict(place.identity)}
        if self._report is not None:
            self._mark_start(place, self._report)

    def _mark_start(self, place: Place, report: ResumeReport) -> None:
        with self._passing(place.title):
            place.begin(step=report.step, segment=self._segment)
        self._wait(place.title, partial(place.began, self._settings.where))
        if report.restored or report.reasons:
            lost = report.steps_lost
            self._wait(place.title, partial(place.restarted, report.line, step=report.step, lost=lost))
        for save in self._early:
            self._mark(place, save)

    def _mark(self, place: Place, save: Saved) -> None:
        self._wait(place.title, partial(place.saved, step=save.step, seconds=save.durable))

    def _wait(self, title: str, mark: Callable[[], None]) -> None:
        self._waiting.append((title, mark))
        with self._passing(title):
            self._worker.ask()

    def _leave(self) -> None:
        """Runs in the worker's thread."""
        while self._waiting:
            title, mark = self._waiting[0]
            with self._passing(title):
                mark()
            if self._waiting and self._waiting[0][1] is mark:  # else it was pushed out by newer ones
                self._waiting.popleft()

    def _compare(self, commit: Commit) -> None:
        """Say where the run was logged to elsewhere before."""
        repository = Repository.open(self._settings.root, self._settings.job)
        before = told(repository.meta(commit).counters)
        for kind, now in self._identities.items():
            then = before.get(kind)
            if then is None or then == now:
                continue
            name = "run_id" if kind == "mlflow" else "id"
            if then.get(name) == now.get(name):
                continue
            self._problems.setdefault(
                f"{kind} before",
                f"This start logs to the {kind} run {now.get(name)}; up to step {commit.step:,} the run was logged to"
                f" {then.get(name)}. To go on there, begin it with what unbroken.trackers.{kind}_run() returns.",
            )

    @contextmanager
    def _passing(self, title: str) -> Generator[None]:
        """Let nothing that fails here reach who has called; it is told."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a library raises, no checkpoint depends on it
            self._failed(title, error)

    def _failed(self, title: str, error: Exception) -> None:
        why = (str(error).strip().partition("\n")[0] or type(error).__name__).removesuffix(".")
        self._problems.setdefault(
            title,
            f"Checkpoints and restarts cannot be marked in {title}: {why}. Training and checkpoints go on.",
        )

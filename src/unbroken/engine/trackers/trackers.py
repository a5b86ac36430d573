"""Marks checkpoints and restarts in the trackers that the training is using: TensorBoard, W&B, MLflow.

W&B and MLflow are found by themselves, where the script has loaded them and begun a run; others are named by `tell`.
Which runs these are goes with every checkpoint, so that the next start can go on in them.

Invariants: no library is imported that the script has not; nothing here costs a training a checkpoint, or a start:
what fails is heard once for each place; marks are left in a thread that nobody waits for, but for a few seconds at the
end; a start is marked before the checkpoints that follow it, and those that it was told of first are marked after it.
So that no thread has to wait for another, all that is heard goes through one queue, and that thread alone decides what
is marked where.

Not promised: marks of the last moments before a kill.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from unbroken.engine.monitoring.worker import Worker
from unbroken.engine.observer import Saved
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.marks import Marks, passing, title_of
from unbroken.engine.trackers.place import Finders, Place
from unbroken.engine.trackers.recorded import told
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository

LAST_SECONDS = 5.0
"""How long the end of a run waits for the last marks."""
MOST_WAITING = 1000
"""Saves that wait while a tracker does not answer; those that come then are not marked."""


class TrackerWarning(UserWarning):
    """Marks cannot be left in a tracker, or a start logs to another one than the run did before. The training and
    its checkpoints go on."""


class Trackers:
    """The observer of a run that marks what it hears; `speaks` is False for ranks that are not the first."""

    def __init__(self, settings: Settings, *, segment: int, speaks: bool, finders: Finders = ()) -> None:
        self._settings = settings
        self._segment = segment
        self._wanted = frozenset(settings.trackers) if speaks else frozenset[str]()
        self._finders = [finder for finder in finders if finder.kind in self._wanted]
        self._places: list[Place] = []
        self._named: list[Place] = []
        """Those of them that somebody has named."""
        self._identities: dict[str, dict[str, str]] = {}
        self._report: ResumeReport | None = None
        self._heard: deque[Callable[[], None]] = deque()
        self._marks = Marks(settings.where, failed=self._failed)
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
            with passing(title_of(place), self._failed):
                self._add(place)

    def starting(self) -> None:
        """Look which trackers are in use."""
        self._look()

    def started(self, report: ResumeReport) -> None:
        """Mark the start, and what was saved for it."""
        self._look()
        self._report = report
        for place in self._places:
            self._make_room(place, report)
        if self._places:
            self._hear(partial(self._marks.start, tuple(self._places), report))
        if self._identities and report.commit is not None and not report.origin:
            self._hear(partial(self._compare, report.commit, self._identities))

    def not_started(self, error: BaseException) -> None:
        """Do nothing: no start has come of it."""

    def saved(self, save: Saved) -> None:
        """Mark a checkpoint. Before the start is known that may be its own, which a tracker found later is told of, too."""
        somebody = self._places or (self._wanted and self._report is None)
        if somebody and len(self._heard) < MOST_WAITING:
            self._hear(partial(self._marks.save, save))

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """Do nothing: there is nothing to be marked."""

    def speak(self) -> None:
        """Look again, since a tracker may have been begun meanwhile, and warn of each that fails, once."""
        self._look()
        for title in self._problems.keys() - self._spoken:
            self._spoken.add(title)
            warnings.warn(TrackerWarning(self._problems[title]), stacklevel=6)

    def ended(self) -> None:
        """Have the last marks left."""
        if os.getpid() != self._owner:
            return
        if self._places:
            self._hear(self._marks.flush)
        if not self.wait(LAST_SECONDS):
            self._failed(self._marks.at, TimeoutError(f"no answer within {LAST_SECONDS:g} seconds"))
        # Nobody calls any more who could be warned.
        for title in self._problems.keys() - self._spoken:
            self._spoken.add(title)
            say(f"unbroken: {self._problems[title]}")

    def wait(self, seconds: float) -> bool:
        """Wait until all that was heard is marked, at most so many seconds. Return whether it is."""
        return self._worker.finish(seconds)

    def _look(self) -> None:
        """Take up the runs of W&B and MLflow that this thread logs to; leave alone those that are over."""
        for finder in self._finders:
            kind = finder.kind
            if any(place.kind == kind for place in self._named):
                continue
            with passing(kind, self._failed):
                found = finder.find(sys.modules)
                known = next((place for place in self._places if place.kind == kind), None)
                if found is not None and known is not None and found.identity == known.identity:
                    continue
                if known is not None:
                    self._places.remove(known)
                    self._hear(partial(self._marks.leave, known))
                if found is not None:
                    self._add(found)

    def _add(self, place: Place) -> None:
        identity = dict(place.identity)
        self._places.append(place)
        if identity:
            self._identities = {**self._identities, place.kind: identity}
        if self._report is not None:
            self._make_room(place, self._report)
            self._hear(partial(self._marks.start, (place,), self._report))

    def _make_room(self, place: Place, report: ResumeReport) -> None:
        with passing(title_of(place), self._failed):
            place.begin(step=report.step, segment=self._segment)

    def _hear(self, news: Callable[[], None]) -> None:
        self._heard.append(news)
        with passing("a tracker", self._failed):
            self._worker.ask()

    def _leave(self) -> None:
        """Runs in the worker's thread."""
        while self._heard:
            with passing("a look at the run", self._failed):
                self._heard[0]()
            self._heard.popleft()

    def _compare(self, commit: Commit, identities: Mapping[str, Mapping[str, str]]) -> None:
        """Say where the run was logged to elsewhere before."""
        repository = Repository.open(self._settings.root, self._settings.job)
        before = told(repository.meta(commit).counters)
        for kind, now in identities.items():
            then = before.get(kind)
            if then is None or then == now:
                continue
            name = next(iter(now))
            if then.get(name) == now.get(name):
                continue
            self._problems.setdefault(
                f"{kind} before",
                f"This start logs to the {kind} run {now.get(name)}; up to step {commit.step:,} the run was logged to"
                f" {then.get(name)}. To go on there, begin it with what unbroken.trackers.{kind}_run() returns.",
            )

    def _failed(self, title: str, error: BaseException) -> None:
        why = (str(error).strip().partition("\n")[0] or type(error).__name__).removesuffix(".")
        self._problems.setdefault(
            title,
            f"Checkpoints and restarts cannot be marked in {title}: {why}. Training and checkpoints go on.",
        )

"""What is marked where: the side of the trackers that lives in the thread which leaves marks.

Invariants: of each place the start is marked first, then what was saved for it, then what follows; what fails in one place is
told, and keeps nothing from the others.

Not promised: that several threads may call. One does, in the order in which things happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

from unbroken.engine.observer import Saved
from unbroken.engine.report import ResumeReport
from unbroken.engine.trackers.place import Place


class Marks:
    """Leaves marks of the run that lies `where`. `failed` is told the title of a place and what it raised."""

    def __init__(self, where: str, *, failed: Callable[[str, BaseException], None]) -> None:
        self._where = where
        self._failed = failed
        self._begun: list[Place] = []
        self._early: list[Saved] = []
        """What was saved before the first start was marked: its own checkpoint."""
        self._started = False
        self.at = "a tracker"
        """The title of the place that is being told something."""

    def start(self, places: Collection[Place], report: ResumeReport) -> None:
        """Mark the start in these places, and what was saved for it."""
        self._started = True
        for place in places:
            with self._telling(place):
                place.began(self._where)
            if report.restored or report.reasons:
                lost = None if report.lost_at_least else report.steps_lost  # a number would be read as exact
                with self._telling(place):
                    place.restarted(report.line, step=report.step, lost=lost)
            for save in self._early:
                self._mark(place, save)
            self._begun.append(place)

    def leave(self, place: Place) -> None:
        """Mark nothing in this place any more."""
        self._begun = [one for one in self._begun if one is not place]

    def save(self, save: Saved) -> None:
        """Mark a checkpoint in all places."""
        if not self._started:
            self._early.append(save)
        for place in self._begun:
            self._mark(place, save)

    def flush(self) -> None:
        """Let what was marked be seen."""
        for place in self._begun:
            with self._telling(place):
                place.flush()

    def _mark(self, place: Place, save: Saved) -> None:
        with self._telling(place):
            place.saved(step=save.step, seconds=save.durable)

    @contextmanager
    def _telling(self, place: Place) -> Generator[None]:
        self.at = title_of(place)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - no signal comes to this thread: it is the library's own
            self._failed(self.at, error)


def title_of(place: Place) -> str:
    """Return what a person calls a place, where that can be told."""
    try:
        return place.title
    except Exception:  # noqa: BLE001 - what it is told next fails, too, and is heard
        return f"the {place.kind} run"


@contextmanager
def passing(title: str, failed: Callable[[str, BaseException], None]) -> Generator[None]:
    """Let no failure reach who has called; `failed` is told the title and the error.

    What ends a process passes: in the training's thread it may come from a signal that arrives just now."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a library raises, no checkpoint depends on it
        failed(title, error)

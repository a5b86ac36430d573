"""Who is told how starts and saves went: nobody, unless somebody has asked for it.

Invariant: an observer only listens. It raises nothing but warnings that were made errors, and nothing that a
training does, waits for or writes depends on it. Nothing is told at a step.

Not promised: that everything is told. A process that is killed tells nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One save that is over. All times are in seconds.

    `blocked`: training stood still, while the state was copied. `durable`: from there until the commit existed.
    `busy`: from there until the writer was free again."""

    step: int
    blocked: float
    durable: float
    busy: float


class Observer(Protocol):
    """Listens to one engine. `saved` and `not_saved` come in any thread, all else in that of the training."""

    def starting(self) -> None:
        """The run is ours, and recovery begins."""
        ...

    def started(self, report: ResumeReport) -> None:
        """Training begins, or goes on."""
        ...

    def not_started(self, error: BaseException) -> None:
        """The start has failed with `error`, or was ended by it: a signal, Ctrl-C. Nothing else follows."""
        ...

    def saved(self, save: Saved) -> None:
        """A checkpoint exists, and what it replaces was removed."""
        ...

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """A save has failed, or if it is `committed`, only what follows it. One failure may be told twice."""
        ...

    def speak(self) -> None:
        """Say what a person has to know of the observer itself. May raise a warning, as `warnings.warn` does."""
        ...

    def ended(self) -> None:
        """Training is over for this engine; nothing else follows."""
        ...


class Nobody:
    """Does not listen."""

    def starting(self) -> None:
        """Do nothing."""

    def started(self, report: ResumeReport) -> None:
        """Do nothing."""

    def not_started(self, error: BaseException) -> None:
        """Do nothing."""

    def saved(self, save: Saved) -> None:
        """Do nothing."""

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """Do nothing."""

    def speak(self) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


class Several:
    """Lets several observers listen, one after the other: each of them, whatever one raises."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def starting(self) -> None:
        """Tell each."""
        self._tell(lambda one: one.starting())

    def started(self, report: ResumeReport) -> None:
        """Tell each."""
        self._tell(lambda one: one.started(report))

    def not_started(self, error: BaseException) -> None:
        """Tell each."""
        self._tell(lambda one: one.not_started(error))

    def saved(self, save: Saved) -> None:
        """Tell each."""
        self._tell(lambda one: one.saved(save))

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """Tell each."""
        self._tell(lambda one: one.not_saved(error, step=step, committed=committed))

    def speak(self) -> None:
        """Let each speak."""
        self._tell(lambda one: one.speak())

    def ended(self) -> None:
        """Tell each."""
        self._tell(lambda one: one.ended())

    def _tell(self, news: Callable[[Observer], None]) -> None:
        """Tell each. Where several raise, it is the last error, and each has the one before it as its context."""
        raised: BaseException | None = None
        for one in self.observers:
            try:
                news(one)
            except BaseException as error:  # noqa: BLE001 - raised below
                error.__context__ = error.__context__ or raised
                raised = error
        if raised is not None:
            raise raised


def observer_of(
    settings: Settings,
    *,
    memory: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Observer:
    """Return who listens under these settings. `memory` tells how many bytes the engine keeps for copies.

    Raises:
        ConfigError: a library that it needs is not installed.
    """
    if settings.metrics is None:
        return Nobody()
    from unbroken.engine.monitoring.monitor import Monitor

    return Monitor(settings, settings.metrics, memory=memory, clock=clock, now=now)

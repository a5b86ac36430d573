"""Listens to an engine and tells its metrics in the ways that were asked for.

Invariants: nothing here costs a training a checkpoint, or a start: whatever fails in telling is counted, and a person
hears of it once for each way. What may take time (a look at the store, a file, TensorBoard) is done in a thread
that nobody waits for, but for a few seconds at the end. In a forked child no engine calls it.

Not promised: that every save is seen. What is told is the newest; while a look takes long, those between are left out.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

from unbroken.engine.monitoring.endpoint import Endpoint
from unbroken.engine.monitoring.metrics import COUNTERS, Metrics
from unbroken.engine.monitoring.scalars import Scalars
from unbroken.engine.monitoring.stock import look
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.monitoring.textfile import Textfile
from unbroken.engine.monitoring.worker import Worker
from unbroken.engine.observer import Saved
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, NoUsableCheckpoint, RestoreFailed, RunBusy, UnsupportedFormat
from unbroken.repo.repository import Repository
from unbroken.repo.roots import is_url

LAST_SECONDS = 5.0
"""How long the end of a run waits for the last metrics to be told."""

REST = 200.0
"""So many times as long as it took to measure the store, it is not measured again."""


class MonitoringWarning(UserWarning):
    """Metrics cannot be told in one of the ways that were asked for. The training and its checkpoints go on."""


class Monitor:
    """The observer of a run with `Monitoring`.

    Raises:
        ConfigError: a library that it needs is not installed, or a place for metrics lies inside the run.
    """

    def __init__(
        self,
        settings: Settings,
        target: Monitoring,
        *,
        memory: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        target.check_outside(*settings.places)
        self._settings = settings
        self._target = target
        self._file = f"the file {os.fspath(target.textfile)}"
        self._clock = clock
        self._now = now
        remote = is_url(os.fspath(settings.root))
        every = settings.interval
        self._metrics = Metrics(settings.job, every, remote=remote, memory=memory, clock=clock)
        self._textfile = Textfile(target.textfile) if os.fspath(target.textfile) else None
        self._scalars = Scalars(target.tensorboard, now=now) if os.fspath(target.tensorboard) else None
        self._endpoint: Endpoint | None = None
        self._worker = Worker(self._tell)
        self._owner = os.getpid()
        self._closed = False
        self._history_known = False
        self._measure_at = 0.0
        self._step = 0
        self._last_error: BaseException | None = None
        self._problems: dict[str, str] = {}
        self._spoken: set[str] = set()
        self._carry_over()

    @property
    def url(self) -> str:
        """Where the metrics are served; "" if nowhere."""
        return "" if self._endpoint is None else self._endpoint.url

    def starting(self) -> None:
        """Open the endpoint. The run is ours, so nobody else serves it."""
        with self._passing("start"):
            self._metrics.starting(self._now())
        self._serve()

    def _serve(self) -> None:
        """Open the endpoint unless it is open. A port that is taken may be free at the next save."""
        address, port = self._target.address, self._target.port
        if port is None or self._endpoint is not None or self._closed:
            return
        with self._passing(f"the endpoint {address}:{port}"):
            self._endpoint = Endpoint(self._metrics.registry, address=address, port=port)
            if port == 0:  # nobody can know it
                say(f"unbroken: metrics at {self._endpoint.url}")

    def started(self, report: ResumeReport) -> None:
        """Take over what the start came to."""
        with self._passing("start"):
            self._step = report.step
            self._history_known = False
            self._metrics.started(report)
            self._worker.ask()

    def not_started(self, error: BaseException) -> None:
        """Tell of the failure while there is somebody to do it, and stop serving."""
        if not isinstance(error, Exception):
            self.ended()  # told to end while it restored: nothing has failed
            return
        if isinstance(error, (RunBusy, ConfigError)):
            self._close()  # the run is another's, and so are its files; or nothing was begun
            return
        with self._passing("start"):
            self._metrics.not_started(
                version=isinstance(error, UnsupportedFormat),
                restored_nothing=isinstance(error, (RestoreFailed, NoUsableCheckpoint)),
            )
            self._history_known = False
            self._worker.ask()
        self._close()

    def saved(self, save: Saved) -> None:
        """Take over what a save has cost."""
        self._last_error = None  # its traceback holds what was being written
        with self._passing("save"):
            self._step = save.step
            self._metrics.saved(save)
            self._worker.ask()

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        """Count a failure, once: the writer's comes again, as the cause of what the training is told."""
        last = self._last_error
        if last is not None and (error is last or error.__cause__ is last):
            return
        self._last_error = error
        with self._passing("save"):
            self._metrics.not_saved(committed=committed)
            self._worker.ask()

    def speak(self) -> None:
        """Warn of each way that has failed, once."""
        for way in self._problems.keys() - self._spoken:
            self._spoken.add(way)
            warnings.warn(MonitoringWarning(self._problems[way]), stacklevel=6)

    def ended(self) -> None:
        """Tell of the end, and stop serving."""
        with self._passing("end"):
            self._metrics.ended()
            self._worker.ask()
        self._close()

    def _close(self) -> None:
        if os.getpid() != self._owner:
            return
        if not self._worker.finish(LAST_SECONDS):
            self._failed("the last metrics", TimeoutError(f"not told within {LAST_SECONDS:g} seconds"))
        self._closed = True
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            with self._passing("the endpoint"):
                endpoint.close()
        if self._scalars is not None:
            with self._passing("TensorBoard"):
                self._scalars.close()
        # Nobody calls any more who could be warned.
        for way in self._problems.keys() - self._spoken:
            self._spoken.add(way)
            say(f"unbroken: {self._problems[way]}")

    def _tell(self) -> None:
        """Runs in the worker's thread."""
        self._serve()
        with self._passing("a look at the run"):
            self._look()
        if self._textfile is not None:
            with self._passing(self._file):
                self._textfile.write(self._metrics.registry)
        if self._scalars is not None:
            with self._passing(f"TensorBoard in {os.fspath(self._target.tensorboard)}"):
                self._scalars.write(self._metrics.scalars(), step=self._step)

    def _look(self) -> None:
        began = self._clock()
        usage, history = began >= self._measure_at, not self._history_known
        repository = Repository.open(self._settings.root, self._settings.job)
        # Before the look: what a start writes meanwhile is looked for at the next one.
        self._history_known = True
        try:
            stock = look(repository, usage=usage, history=history)
        except BaseException:
            self._history_known &= not history
            raise
        self._metrics.looked(stock)
        if usage:
            self._measure_at = self._clock() + REST * (self._clock() - began)

    def _carry_over(self) -> None:
        """Go on with the counters that an earlier process has left in the file."""
        if self._textfile is None:
            return
        with self._passing(self._file):
            for name, value in self._textfile.counters(self._settings.job).items():
                if name in COUNTERS:
                    self._metrics.count(name, value)

    @contextmanager
    def _passing(self, way: str) -> Generator[None]:
        """Let nothing that fails here reach who has called; it is counted and told."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a library raises, no checkpoint depends on it
            self._failed(way, error)

    def _failed(self, way: str, error: Exception) -> None:
        why = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
        self._metrics.count("unbroken_monitoring_failures_total")
        why = (why or type(error).__name__).removesuffix(".")
        self._problems.setdefault(
            way,
            f"Metrics cannot be told by {way}: {why}. Training and checkpoints go on;"
            f" what fails is tried again at the next save.",
        )

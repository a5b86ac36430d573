"""`start`: exact checkpoints for a training function that Ray Train runs on one worker or on many.

The top of an iteration is the clean point, as in `unbroken.Run`: nothing but the tracked objects, `ckpt.vars`
and the global generators carries over from one to the next. A save is of all workers together. What Ray Train
gets is a pointer, by rank 0, with the first report after a checkpoint is durable: a kill in between costs
nothing, since Ray's record only ever follows.

Every worker has to report equally often; that is Ray's rule. The loop ends with a report of its own.

Not promised: that Ray's record is of the newest checkpoint. It is behind by what lay in its queue. Nor low
bits of three and more workers with a `DistributedDataParallel` that refills its buckets; that is named.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from unbroken.adapters.ray_train import record
from unbroken.adapters.ray_train.status import checked
from unbroken.adapters.ray_train.world import context, root_in_storage, world
from unbroken.adapters.trackers.places import IN_USE
from unbroken.capture.process_group import STEP_SECONDS
from unbroken.capture.tracked import Tracked
from unbroken.capture.untracked import warn_of_untracked
from unbroken.engine.configuration.sources import root_said
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.options import divided, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.engine.steps import FramedLoop, Steps
from unbroken.engine.world import REPLICATED, SYNC_SECONDS, World
from unbroken.errors import ConfigError, RunBusy
from unbroken.repo.roots import is_url

_NO_NAME = "the training has no name, so a driver that is started again begins anew; say RunConfig(name=…), or a root"
PATIENCE = 60.0
"""Seconds that rank 0 waits for its own last process, which Ray may still be ending."""
_PAUSE = 0.1
_STATUS = "worker_status"
_REFUSED = {"resume": "Ray Train starts workers anew by itself, and they go on from the newest checkpoint"}


@takes_settings(without=_REFUSED)
def start(
    root: str | os.PathLike[str] | None = None,
    *,
    job: str = "",
    replicated: Collection[str] = REPLICATED,
    start_timeout: float = 600.0,
    step_timeout: float = STEP_SECONDS,
    quiet: bool = False,
    **objects: object,
) -> TrainRun:
    """Return the run of this training, which tracks `objects`. Every worker calls it, with what it has.

    `root` is absolute, or a URL, and seen by every worker; left out, it lies in the experiment's directory in
    Ray's own storage. `job` names the run below it; left out, it is the experiment's name (`RunConfig(name=…)`), so
    that several experiments can have one root, or the last part of the root where the experiment has no name.
    `replicated` names what is the same on every worker, as data-parallel training keeps it: it is saved once and
    compared, all else is saved for each worker. `sync_timeout`, `start_timeout` and `step_timeout` are those of
    `unbroken.distributed.world`, in seconds. The other options are those of `unbroken.Run`.

    Variables `UNBROKEN_…` of the workers override options. They are the driver's on a cluster that the driver
    has started; on another one they are given by `RunConfig(worker_runtime_env={"env_vars": …})`.

    Raises:
        ConfigError: this is no worker, or a setting cannot be used. Nothing was opened or written.
    """
    here = context()
    name = str(here.get_experiment_name() or "")
    said = root_said(os.environ) if root is None else None
    if root is None:
        if is_made_up(name) and here.get_world_rank() == 0 and not quiet:
            say(f"unbroken: {_NO_NAME}")
        job = job or job_name(name)
        # Where something else says it, Ray's storage is not asked: there may be none.
        root = root_in_storage() if said is None else None
    elif name and not is_made_up(name):
        job = job or job_name(name)
    options, objects = divided(objects)
    settings = settings_of("start", root, options, job=job, refused=_REFUSED)
    run = TrainRun(
        checked_root(settings.overridden(os.environ)),
        replicated=replicated,
        start_timeout=start_timeout,
        step_timeout=step_timeout,
        quiet=quiet,
    )
    run.track(**objects)
    return run


def job_name(experiment: str) -> str:
    """Return a name that a run can have.

    >>> job_name("my experiment/1")
    'my-experiment-1'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", experiment).lstrip("._-")[:128] or "run"


def is_made_up(experiment: str) -> bool:
    """Whether a name is the one that Ray makes up at each start of a driver that gives none."""
    return re.match(r"ray_train_run-\d{4}-", experiment) is not None


def checked_root(settings: Settings) -> Settings:
    """Return the settings if every worker finds the same place by them.

    Raises:
        ConfigError: the root is a relative path.
    """
    root = os.fspath(settings.root)
    if not is_url(root) and not os.path.isabs(root):
        raise ConfigError(
            f"The root {root!r} is relative, and each worker runs in a directory of its own.",
            hint=f"Give an absolute path, for example {os.path.join('/shared', root)!r}, or a URL.",
        )
    return settings


class TrainRun:
    """One training as one of its workers sees it. Comes from `start`, which takes its times in seconds."""

    def __init__(
        self,
        settings: Settings,
        *,
        replicated: Collection[str],
        start_timeout: float,
        step_timeout: float,
        quiet: bool,
    ) -> None:
        self.settings = settings
        self.resumed: ResumeReport | None = None
        """How this start went; None before the first step was asked for."""
        self.worker_status: Sequence[Mapping[str, Any]] = ()
        """What each worker had reported of itself by the checkpoint that came back, one entry a rank."""
        self._tracked = Tracked()
        self.vars = self._tracked.vars
        self._counters = self._tracked.counters
        self._status: dict[str, Any] = {}
        self._tracked.add({_STATUS: self._status})
        self._meeting = partial(
            world,
            settings.interval,
            replicated=replicated,
            sync_timeout=settings.sync_timeout or SYNC_SECONDS,
            start_timeout=start_timeout,
            step_timeout=step_timeout,
        )
        self._quiet = quiet
        self._engine: CheckpointEngine | None = None
        self._world = World(rank=0, size=1)
        self._ray = record.RayRecord(settings)
        self._last: Mapping[str, Any] | None = None
        """The metrics that Ray Train was told last."""
        self._failed: BaseException | None = None
        self._warned: set[str] = set()

    def track(self, **objects: object) -> None:
        """Save and restore these objects too, in place; see `unbroken.Run.track`.

        Raises:
            ConfigError: the loop has begun.
        """
        if self.resumed is not None:
            raise ConfigError("track() comes before the loop.", hint="Call it before ckpt.steps().")
        self._tracked.add(objects)

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left of `total`; what was saved comes back on entering.

        Raises ConfigError where the function has a loop already, and from the first iteration on StateMismatch,
        NoUsableCheckpoint, Untrusted, RunBusy, RankMissing, ReplicasDiffer, RestoreFailed, SaveFailed; see `unbroken.errors`. Let them through: Ray Train then starts
        all workers again, or ends the training.
        """
        if self.resumed is not None:
            raise ConfigError(
                "A training function has one loop.", hint="Put both loops into one, over ckpt.steps()."
            )
        loop = FramedLoop(
            sys._getframe(1), begin=self._begin, at_top=self._at_top, end=self._end,
            stopped=lambda: self._counters.stopped,
        )  # fmt: skip
        return Steps(loop, total)

    def report(self, metrics: Mapping[str, Any], **facts: object) -> None:
        """Report to Ray Train: the metrics, and by rank 0 a pointer to a checkpoint that is new and durable.

        `facts` are what this worker says of itself, such as `epoch=3, env_seed=7, rollouts=12`. They go with
        the next checkpoints, and so do numbers among the metrics, for `best`.

        Raises:
            ConfigError: a fact is none, or the loop has not begun.
        """
        self._running()
        self._status.update(checked(facts))
        self._note()
        self._counters.keep_numbers(metrics)
        self._tell(metrics)

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._counters.record(episodes, metrics)

    @property
    def episodes(self) -> int:
        """How many episodes this worker has recorded, over all its processes."""
        return self._counters.episodes

    @property
    def status(self) -> Mapping[str, Any]:
        """What this worker has reported of itself last, also before a resume."""
        return self._status

    def save(self) -> None:
        """Save at the top of the next iteration. Of several workers rank 0 decides.

        Raises:
            ConfigError: the workers have nothing by which they could hear of it.
        """
        engine = self._running()
        if self._world.size > 1 and self._world.agree is None:
            raise ConfigError(
                "Workers without a process group that save every so many steps do not hear of a wish.",
                hint="Use TorchTrainer, or an interval in seconds: every=Every(seconds=60).",
            )
        engine.request_save("requested by the script")

    def wait(self, *, seconds: float = 60.0) -> bool:
        """Wait until what was saved by now is durable, and then, at most so many seconds, until all trackers of experiments
        that are in use have been told of it. Return whether they have. Ray Train is told by `report`.

        Raises:
            ConfigError: no loop is going on. SaveFailed, Fenced, AmbiguousCommit: the newest save was not written.
        """
        return self._running().wait_for_marks(seconds)

    def stop(self) -> None:
        """End the loop at the top of its next iteration, for good. Every worker has to call it at one step."""
        self._counters.stopped = True

    def close(self) -> None:
        """Wait for the last save and give the run back. At the end of the loop this happens by itself.

        Raises:
            SaveFailed: the last checkpoint could not be written.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _running(self) -> CheckpointEngine:
        if self._failed is not None:
            # Ray's next report would wait for ever for the turn of the one that has failed.
            raise self._failed
        if self._engine is None:
            raise ConfigError("The loop has not begun, or is over.", hint="Iterate over ckpt.steps().")
        return self._engine

    def _begin(self, frame: FrameType, total: int) -> int:
        warn_of_untracked(frame, [self, *self._tracked.objects.values()], self._warned)
        self._world = self._meeting()
        found = record.given()
        record.check_same_run(found, self.settings)
        self._counters.stopped = False
        self._note()
        source = self._tracked.source()
        engine = CheckpointEngine(source, self.settings, world=source.among(self._world), finders=IN_USE)
        report = self._resume(engine)
        report = report if self._counters.stopped else report.towards(total)
        self._engine = engine
        self.worker_status = self._ray.worker_status(report)
        self._note()
        if self._world.is_coordinator:
            report = replace(report, also=(*report.also, *self._ray.begin(found, report)))
        self.resumed = report
        if self._world.is_coordinator and not self._quiet:
            say(report.text)
        return report.step

    def _resume(self, engine: CheckpointEngine) -> ResumeReport:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return engine.resume()
            except RunBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_PAUSE)

    def _note(self) -> None:
        """Put what this worker says of itself where checkpoints take it from."""
        if self._world.size == 1:
            self._tracked.notes[_STATUS] = [{"rank": 0, **self._status}]
        else:
            self._tracked.notes.update(self._status)  # of several, the one that commits makes the list

    def _at_top(self, step: int) -> None:
        if self._counters.save_if_due(self._running(), step):
            self._ray.is_behind = True

    def _tell(self, metrics: Mapping[str, Any]) -> None:
        self._last = dict(metrics)
        try:
            self._ray.report(self._last, self._world, waiting=self._running().is_saving)
        except BaseException as error:
            self._failed = error
            raise

    def _end(self, step: int) -> None:
        engine = self._running()
        assert self.resumed is not None
        if self._counters.save_end(engine, self.resumed, step):
            self._ray.is_behind = True
        # Also where the end was there already: every worker reports equally often, whatever Ray knows.
        self._tell(self._counters.metrics if self._last is None else self._last)
        self.close()

"""`start`: exact checkpoints for a function that Tune runs as a trial.

The top of an iteration is the clean point, as in `unbroken.Run`: nothing but the tracked objects,
`run.vars` and the global generators carries over from one to the next. Of a checkpoint Tune gets a
pointer, with the first report after it is durable.

Not promised: that Tune's `training_iteration` counts steps. It counts reports, those of steps that are done
again included; let `run.steps(total)` end a trial.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any

from ray import tune

from unbroken.adapters.tune.pointers import read_pointer
from unbroken.adapters.tune.trial import Trial, job_of_trial
from unbroken.capture.tracked import Tracked
from unbroken.capture.untracked import warn_of_untracked
from unbroken.engine.report import ResumeReport
from unbroken.engine.schedule import DEFAULT_EVERY, Every
from unbroken.engine.settings import Settings, WorstTier, WriterKind
from unbroken.engine.steps import Steps
from unbroken.errors import ConfigError
from unbroken.format.pointer import Pointer
from unbroken.repo.retention import Best

HOLD = 50
"""More than are reported while a trial waits for a worker. Room for as many is taken only by a training that
reports so often within ten minutes, and such a one is small."""


def start(
    root: str | os.PathLike[str],
    *,
    config: Mapping[str, Any],
    trial: str = "",
    every: Every | int = DEFAULT_EVERY,
    keep_last: int = 5,
    best: Best | None = None,
    hold: int = HOLD,
    worst_tier: WorstTier = "rebuilt",
    allow_changed: Collection[str] = (),
    trust: bool = False,
    staging: int | None = None,
    writer: WriterKind = "thread",
    quiet: bool = False,
    **objects: object,
) -> TrialRun:
    """Return the run of this trial, which tracks `objects`.

    It lies in `root/<experiment>-<trial id>`; `root` is absolute, or a URL, and seen by every trial. A name
    that the script gives, `trial`, stands in the place of Tune's id: then an experiment that Tune does not take
    up again (after `fail_fast`) goes on in a new one of the same name. No two trials may share it. `hold`
    is how many reported checkpoints stay beyond `keep_last`, for at most ten minutes, so that other trials
    can go on from them. The other options are those of `unbroken.Run`.

    Raises:
        ConfigError: this is no trial, or a setting cannot be used. Nothing was opened or written.
    """
    settings = Settings(
        root=root,
        job=job_of_trial(trial),
        every=every,
        keep_last=keep_last,
        best=best,
        worst_tier=worst_tier,
        allow_changed=allow_changed,
        trust=trust,
        staging=staging,
        writer=writer,
    )
    tracked = Tracked()
    tracked.add(objects)
    return TrialRun(Trial(settings, tracked, config, hold=checked_hold(hold), quiet=quiet))


def checked_hold(hold: int) -> int:
    """Return `hold`, or raise ConfigError."""
    given: object = hold
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(
            f"hold must be a whole number of checkpoints, not {given!r}.",
            hint="Leave it out for the default.",
        )
    return hold


class TrialRun:
    """One trial with a loop of its own. Comes from `start`."""

    def __init__(self, trial: Trial) -> None:
        self.vars = trial.tracked.vars
        self.resumed: ResumeReport | None = None
        """How the trial started; None before the first step was asked for."""
        self._trial = trial
        self._counters = trial.tracked.counters
        self._warned: set[str] = set()
        self._unreported = False
        """Whether there is a checkpoint that Tune has not been told of."""
        self._silent = True
        """Whether this process has reported nothing."""

    def track(self, **objects: object) -> None:
        """Save and restore these objects too, in place; see `unbroken.Run.track`."""
        if self._trial.is_open:
            raise ConfigError("track() comes before the loop.", hint="Call it before run.steps().")
        self._trial.tracked.add(objects)

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left of `total`; what was saved comes back on entering.

        Raises (from the first iteration on): StateMismatch, NoUsableCheckpoint, Untrusted, RunBusy,
        RestoreFailed, SaveFailed; see `unbroken.errors`.
        """
        if self.resumed is not None:
            raise ConfigError("A trial has one loop.", hint="Put both loops into one, over run.steps().")
        return Steps(_Loop(self, sys._getframe(1)), total)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report to Tune: the metrics, and a pointer to the checkpoint that was saved since the last report.

        Numbers among the metrics go with the next checkpoint, for `best`.

        Raises:
            SaveFailed: that checkpoint was not written.
        """
        self._counters.metrics.update(
            (name, float(value)) for name, value in metrics.items() if type(value) in (int, float)
        )
        self._silent = False
        try:
            if not self._unreported:
                tune.report(dict(metrics))
                return
            self._trial.engine.wait()
            with tempfile.TemporaryDirectory(prefix="unbroken-") as directory:
                self._trial.pointers.write(directory, self._trial.pointers.newest())
                self._unreported = False
                tune.report(dict(metrics), checkpoint=tune.Checkpoint.from_directory(directory))
        except BaseException:
            # Also SystemExit: so Tune ends the thread of a trial whose process another trial is to use.
            self.close()
            raise

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._counters.episodes += episodes
        self._counters.metrics.update({name: float(value) for name, value in metrics.items()})

    @property
    def episodes(self) -> int:
        """How many episodes were recorded, over all processes of the trial."""
        return self._counters.episodes

    def save(self) -> None:
        """Save at the top of the next iteration."""
        self._trial.engine.request_save("requested by the script")

    def stop(self) -> None:
        """End the loop at the top of its next iteration, for good: a restart does not go on with it."""
        self._counters.stopped = True

    def close(self) -> None:
        """Wait for the last save and give the run back. At the end of the loop this happens by itself.

        Raises:
            SaveFailed: the last checkpoint could not be written.
        """
        self._trial.close()

    def _begin(self, frame: FrameType) -> int:
        warn_of_untracked(frame, [self, *self._trial.tracked.objects.values()], self._warned)
        self._counters.stopped = False
        self.resumed = self._trial.open(_given())
        self._unreported = True
        return self.resumed.step

    def _at_top(self, step: int) -> None:
        counters = self._counters
        saved = self._trial.engine.step(step, episodes=counters.episodes, metrics=counters.metrics)
        self._unreported = self._unreported or saved

    def _end(self, step: int) -> None:
        assert self.resumed is not None
        if not (self.resumed.finished and self.resumed.step == step):
            self._trial.engine.save(
                step,
                reason="end of training",
                position="end",
                episodes=self._counters.episodes,
                metrics=self._counters.metrics,
            )
        if self._silent and self._counters.metrics:
            # The trial was over, and Tune's record did not know: it has to hear of a metric once more.
            self.report(self._counters.metrics)
        self.close()


class _Loop:
    def __init__(self, run: TrialRun, frame: FrameType) -> None:
        self._run = run
        self._frame: FrameType | None = frame

    def begin(self) -> int:
        assert self._frame is not None
        step = self._run._begin(self._frame)
        self._frame = None
        return step

    def at_top(self, step: int) -> None:
        self._run._at_top(step)

    def is_over(self, step: int, total: int) -> bool:
        return step >= total or self._run._counters.stopped

    def end(self, step: int) -> None:
        self._run._end(step)


def _given() -> Pointer | None:
    """Return the pointer that Tune gives this trial to load, if it gives one."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as directory:
        return read_pointer(directory)

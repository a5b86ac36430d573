"""`start`: exact checkpoints for a function that Tune runs as a trial.

The top of an iteration is the clean point, as in `unbroken.Run`: nothing but the tracked objects,
`run.vars` and the global generators carries over from one to the next. With each report Tune gets a pointer
to the newest checkpoint that is durable; training does not wait for the one that is being written.

Each report, since a scheduler hands out what came with the very report at which it decides: population based
training passes over an exploit, and says nothing, where that one had no checkpoint.

Not promised: that Tune's `training_iteration` counts steps. It counts reports, those of steps that are done
again included; let `run.steps(total)` end a trial.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ray import tune

from unbroken.adapters.tune.pointers import read_pointer
from unbroken.adapters.tune.trial import Trial, job_of_trial
from unbroken.capture.tracked import Tracked
from unbroken.capture.untracked import warn_of_untracked
from unbroken.engine.options import divided, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.steps import FramedLoop, Steps
from unbroken.errors import ConfigError
from unbroken.format.pointer import Pointer
from unbroken.format.records import Commit

HOLD = 3
"""What a scheduler may still hand out, or another trial be about to read: the checkpoint of the winner's last
decision, the one of the decision before, for which a loser may still wait, and the newest. Where one is gone all
the same (several saves between two decisions) the nearest is taken, so no exploit fails by it."""

REFUSED = {"resume": "a trial goes on from what Tune gives it, and from what its own run holds"}
"""Settings that a trial does not take, and why."""


@takes_settings(without=REFUSED)
def start(
    root: str | os.PathLike[str] | None = None,
    *,
    config: Mapping[str, Any],
    trial: str = "",
    hold: int = HOLD,
    repeat_pointer: bool = True,
    quiet: bool = False,
    **objects: object,
) -> TrialRun:
    """Return the run of this trial, which tracks `objects`.

    It lies in `root/<experiment>-<trial id>`; `root` is absolute, or a URL, and seen by every trial. A name
    that the script gives, `trial`, stands in the place of Tune's id: then an experiment that Tune does not take
    up again (after `fail_fast`) goes on in a new one of the same name. No two trials may share it.

    `hold`: so many of the checkpoints that Tune was told of, the newest, stay for ten minutes after their last
    report whatever `keep_last` says, so that other trials can go on from them. With `hold=3, keep_last=1` the run
    has four at most; of a greater `keep_last` the three are a part, if each is reported. 0 holds none.

    `repeat_pointer=False` gives a pointer only with the first report after a checkpoint, for trainings that
    report very often and do without exploits: each pointer is a small directory in Tune's storage.

    Every other keyword that is a setting is the one of `unbroken.Run`, and so is `quiet`; `strict` does not refuse
    what a scheduler has chosen for a clone. Three of its options are not here: `job` is the trial, `resume` is
    what Tune gives it and what its own run holds, and a `world` of several ranks cannot be a clone.

    Raises:
        ConfigError: this is no trial, or a setting cannot be used. Nothing was opened or written.
    """
    options, objects = divided(objects)
    settings = settings_of("start", root, options, job=job_of_trial(trial), refused=REFUSED)
    if not isinstance(repeat_pointer, bool):
        raise ConfigError(
            f"repeat_pointer is True or False, not {repeat_pointer!r}.", hint="Leave it out for the default."
        )
    tracked = Tracked()
    tracked.add(objects)
    return TrialRun(
        Trial(settings, tracked, config, hold=checked_hold(hold), quiet=quiet), repeat_pointer=repeat_pointer
    )


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

    def __init__(self, trial: Trial, *, repeat_pointer: bool = True) -> None:
        self.vars = trial.tracked.vars
        self.resumed: ResumeReport | None = None
        """How the trial started; None before the first step was asked for."""
        self._trial = trial
        self._counters = trial.tracked.counters
        self._warned: set[str] = set()
        self._repeat = repeat_pointer
        self._told: Commit | None = None
        """The newest checkpoint that Tune knows."""
        self._behind = False
        """Whether there may be a newer one."""
        self._silent = True
        """Whether this process has reported nothing."""

    def track(self, **objects: object) -> None:
        """Save and restore these objects too, in place; see `unbroken.Run.track`.

        Raises:
            ConfigError: the loop has begun.
        """
        if self._trial.is_open:
            raise ConfigError("track() comes before the loop.", hint="Call it before run.steps().")
        self._trial.tracked.add(objects)

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left of `total`; what was saved comes back on entering.

        Raises ConfigError where the trial has a loop already, and from the first iteration on StateMismatch,
        NoUsableCheckpoint, Untrusted, RunBusy, RestoreFailed, SaveFailed; see `unbroken.errors`.
        """
        if self.resumed is not None:
            raise ConfigError("A trial has one loop.", hint="Put both loops into one, over run.steps().")
        loop = FramedLoop(
            sys._getframe(1), begin=self._begin, at_top=self._at_top, end=self._end,
            stopped=lambda: self._counters.stopped,
        )  # fmt: skip
        return Steps(loop, total)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report to Tune: the metrics, and a pointer to the newest checkpoint that is durable.

        Numbers among the metrics go with the next checkpoint, for `best`. A save that failed in the background
        is raised by the next step.
        """
        self._counters.keep_numbers(metrics)
        self._silent = False
        commit = self._to_tell()
        try:
            if commit is None:
                tune.report(dict(metrics))
                return
            with tempfile.TemporaryDirectory(prefix="unbroken-") as directory:
                self._trial.pointers.write(directory, commit)
                tune.report(dict(metrics), checkpoint=tune.Checkpoint.from_directory(directory))
            self._told = commit
        except SystemExit:
            # So Tune ends the thread of a trial whose process another trial is to use. Any other error is the
            # script's to catch, and the run is still its own then.
            self.close()
            raise

    def _to_tell(self) -> Commit | None:
        """Return the checkpoint that goes with this report."""
        if self._behind:
            saving = self._trial.is_open and self._trial.engine.is_saving
            if not saving or self._told is None:
                # What is being written comes with a later report: nobody waits for it, and a scheduler can hand
                # out the one before.
                newest = self._trial.pointers.newest()
                self._behind = saving
                if self._told is None or newest.sequence != self._told.sequence:
                    return newest
        return self._told if self._repeat else None

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._counters.record(episodes, metrics)

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

    def _begin(self, frame: FrameType, total: int) -> int:
        warn_of_untracked(frame, [self, *self._trial.tracked.objects.values()], self._warned)
        self._counters.stopped = False
        self.resumed = self._trial.open(_given(), total=total)
        self._behind = True
        return self.resumed.step

    def _at_top(self, step: int) -> None:
        saved = self._counters.save_if_due(self._trial.engine, step)
        self._behind = self._behind or saved

    def _end(self, step: int) -> None:
        assert self.resumed is not None
        if self._counters.save_end(self._trial.engine, self.resumed, step):
            self._behind = True
        if self._silent and self._counters.metrics:
            # The trial was over, and Tune's record did not know: it has to hear of a metric once more.
            self.report(self._counters.metrics)
        self.close()


def _given() -> Pointer | None:
    """Return the pointer that Tune gives this trial to load, if it gives one."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as directory:
        return read_pointer(directory)

"""The engine: decides when to save and from where to go on; knows no framework.

```
adapter: engine.resume()             once, when everything is built and nothing has been trained
         engine.step(step, …)        at every clean point: saves if it is time
         engine.hold(step, …)        there, before something that may take long; see `requests`
         engine.save(…, position="end"), engine.close()
```

Invariants: a save is of the state at the call, or of one held before, whatever training does next; before
`save` returns it is on record that the save was begun; a snapshot that is taken for a save is written or its
failure is raised (one that is held is taken for none, until somebody asks: else it is dropped, by design); there
is always a checkpoint of the start before training goes on; no failure of another save costs that of the end.

Not promised: that training may go on from another thread, or in a forked child, with the same engine.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from unbroken.engine.agreement import lost_a_rank, tell_not_begun
from unbroken.engine.background_call import BackgroundCall
from unbroken.engine.budget import BudgetWarning
from unbroken.engine.clone import Origin
from unbroken.engine.companion.trainer import Companion
from unbroken.engine.dispatch import Dispatch, Taken, not_begun
from unbroken.engine.ending import EndsInOrder
from unbroken.engine.giving_back import give_back
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.metadata import last_line
from unbroken.engine.mirroring import Mirroring
from unbroken.engine.observer import Several, observer_of
from unbroken.engine.opening import Opening
from unbroken.engine.preemption import Preemption
from unbroken.engine.progress import VARIABLE, Progress
from unbroken.engine.reading import ReadsRun
from unbroken.engine.reasons import Reasons
from unbroken.engine.rebuild import JournalKeeper
from unbroken.engine.recovery import Rebuilder
from unbroken.engine.report import ResumeReport
from unbroken.engine.requests import Requests, SaveRequest
from unbroken.engine.resume import Resumption
from unbroken.engine.schedule import Clock, Schedule
from unbroken.engine.seat import Seat, check_world
from unbroken.engine.settings import Settings
from unbroken.engine.snapshots import Snapshots
from unbroken.engine.source import Source
from unbroken.engine.start import context_of, sick_at_first
from unbroken.engine.trackers.place import Finders, Place
from unbroken.engine.trackers.trackers import Trackers
from unbroken.engine.warnings import StagingFullWarning, WarnOnce
from unbroken.engine.world import World, speaks_for_run, usual
from unbroken.errors import (
    AmbiguousCommit,
    ConfigError,
    Fenced,
    ReplicasDiffer,
    SaveFailed,
    StoreError,
    UnbrokenError,
)
from unbroken.format.records import HistoryRecord, Position
from unbroken.repo.process import Process, current
from unbroken.repo.repository import Repository
from unbroken.repo.run_writer import RunWriter
from unbroken.state.shared import SharedMemory
from unbroken.state.snapshot import Snapshot
from unbroken.types import Step


class CheckpointEngine(ReadsRun, EndsInOrder):
    """Saves and resumes one segment of one run.

    `source` is the live training. `segment` is the ordinal of this training within the script. `rebuilder` makes the
    third tier of recovery possible, and `trial` looks at a checkpoint before the run goes on from it. Settings are
    overridden by `UNBROKEN_*` variables of `environment`. Of several processes that train together each has its
    engine, with the `world` as it sees it: all call `resume`, `step`, `save` and `close` at the same points. `finders`
    look for trackers of experiments that the script has begun a run in. `clock` counts seconds and never goes back;
    `now` is the time of day, in seconds since 1970.

    Raises:
        ConfigError: a variable or the configuration file cannot be read, or `segment` is negative.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        *,
        segment: int = 0,
        rebuilder: Rebuilder | None = None,
        trial: WarmUpTrial | None = None,
        world: World | None = None,
        finders: Finders = (),
        clock: Clock = time.monotonic,
        now: Callable[[], float] = time.time,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        if segment < 0:
            raise ConfigError(
                f"A segment is counted from 0, not {segment}.",
                hint="Leave it out for a script with one training.",
            )
        self.settings = settings.overridden(environment)
        self.segment = segment
        self.world = usual(world, self.settings)
        """The processes that train this run together; None where this one is alone."""
        self._source = source
        self._clock = clock
        self._now = now
        self._speaks = speaks_for_run(self.world)
        self._progress_path = environment.get(VARIABLE) if self._speaks else None
        self._process = current()
        self._opening = Opening(
            source,
            self.settings,
            self.world,
            segment=segment,
            rebuilder=rebuilder,
            trial=trial,
            process=self._process,
        )
        self._schedule = Schedule(self.settings.interval, clock)
        if self.world is not None:
            check_world(self.world, self.settings)
        self._run: Seat | None = None
        self._requests = Requests(self._write_held, clock)
        self._step = 0
        self._newest = -1
        """The step of the newest snapshot that was handed over, or that came back."""
        self._finished = False
        self._handed = False
        """Whether the save that was begun last is the writer's by now."""
        self._closed = False
        self._told = WarnOnce()
        memory = SharedMemory() if self.settings.writer == "process" else None
        self._companion = None if memory is None else Companion(memory, self._name_companion)
        self._dispatch = Dispatch(
            source, self.settings, segment=segment, process=self._process, schedule=self._schedule,
            companion=self._companion, clock=clock, now=now,
        )  # fmt: skip
        self._snapshots = Snapshots(source, self.settings, memory, lambda: self._dispatch.context.inexact)
        self._writer = self._dispatch.writer
        self.preemption = Preemption(self.settings, self._requests, self._writer)
        """Whether a signal has told this process to end."""
        self._reasons = Reasons(
            source, self.world, self._schedule, self._requests, self._writer, self.preemption
        )
        self._trackers = Trackers(self.settings, segment=segment, speaks=self._speaks, finders=finders)
        if self._speaks:
            self._dispatch.trackers = self._trackers.identities
            self._dispatch.observer = Several(
                observer_of(self.settings, memory=lambda: self._snapshots.staged_bytes, clock=clock, now=now),
                self._trackers,
            )
        self._observer = self._dispatch.observer

    def resume(self, *, step: int = 0, origin: Origin | None = None) -> ResumeReport:
        """Bring the live objects to where the run goes on, and say from where that is.

        A fresh start begins at `step` and commits a checkpoint of it at once. With an `origin` the run goes
        on as a clone of that checkpoint of another run, whatever it holds itself; see `clone`.

        Raises:
            ConfigError: this engine has resumed already.
            RunBusy: another process works on the run.
            RankMissing: of several ranks not all are there, or some say nothing in time.
            StateMismatch, Untrusted: the checkpoint does not fit, or may not be loaded; nothing was touched.
            NoUsableCheckpoint: there are checkpoints and none can be used.
            RestoreFailed: the live objects are in no usable state.
            SaveFailed: the checkpoint of the start could not be written.
        """
        if self._run is not None or self._closed:
            raise ConfigError("This engine has resumed already.", hint="Make one engine for each training.")
        try:
            with self.preemption.restoring():
                report = self._taken_up(step, origin)
            self._observer.started(report)
            self._observer.speak()
        except BaseException as error:
            self.preemption.closing()
            if self._is_ours:  # what was taken up is ended, as if it had been trained
                self.__exit__(type(error), error, None)
            else:
                self._observer.not_started(error)
            self.preemption.remove()
            raise
        return report

    def _taken_up(self, step: int, origin: Origin | None) -> ResumeReport:
        started = self._clock()
        repository = self._repository(create=True)
        self._run = self._opening.sit(repository)
        atexit.register(self._at_exit)
        try:
            self._dispatch.progress = Progress(self._progress_path)
            self._observer.starting()
            if self._speaks:
                self._dispatch.mirroring = Mirroring.of(self.settings)
                self._dispatch.journal = JournalKeeper(repository.store)
            return self._resume(repository, self._run, step, origin, started=started)
        except BaseException as error:
            self.preemption.closing()  # before anything that another signal could cut short
            self._opening.refused(self._run, error, time=self._now())
            # The script ends or goes on without us; either way the run is free for another process.
            self._release(note=False)
            raise

    def _resume(
        self, repository: Repository, run: Seat, step: int, origin: Origin | None, *, started: float
    ) -> ResumeReport:
        mirroring = self._dispatch.mirroring
        found = self._opening.find(repository, run, origin=origin, mirroring=mirroring)
        self._step = found.step if found.commit is not None or found.restored else step
        context = self._dispatch.context = context_of(found, run, self._source, segment=self.segment)
        self._dispatch.sick_from_birth = sick_at_first(repository, found, self.world)
        if not found.restored:
            state = self._save(step, reason="start of training", position="start")
            self._finish_save()
            found = found.at_start(step, state)
        else:
            self._dispatch.progress.committed(self._step)
            self._newest = self._step
            if mirroring is not None:
                mirroring.soon()  # the last process may not have come to it
            if origin is not None:
                self._settle(found)
            elif found.adopted and self.world is None:
                self.make_due("settings were changed")
        if found.position != "end":
            self._snapshots.expect()
        self._schedule.begin(self._step, found.episodes)
        self._dispatch.progress.step(self._step)
        report = found.report(
            versions=context.versions, fingerprint=context.fingerprint, seconds=self._clock() - started,
            also=self.settings.says,
        )  # fmt: skip
        run.append_history(
            found.history(report, job=self.settings.job, process=self._process, time=self._now())
        )
        return report

    def tell(self, place: Place) -> None:
        """Mark checkpoints and restarts in this tracker, too; see `unbroken.trackers`."""
        if not self._writer.is_child:
            self._trackers.tell(place)

    def _settle(self, found: Resumption) -> None:
        """Commit a clone before it trains: else a kill would bring back what this run was before."""
        self._snapshots.forget()  # what it builds on lies in another run
        self._save(self._step, reason=f"cloned from {found.origin}", position="step", episodes=found.episodes)
        self._finish_save()

    def step(self, step: int, *, episodes: int = 0, metrics: Mapping[str, float] | None = None) -> bool:
        """Tell that training is at a clean point; save if it is time. Returns whether it saved.

        Costs about a microsecond if it is not. While a save is being written the next one waits for
        a later clean point; of several ranks training waits for the save, since all save at the same step.

        Raises:
            SaveFailed: a save before this one was not written, or this one not begun.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
            Preempted, KeyboardInterrupt: a signal has told the process to end; the step is saved, and all given back.
        """
        if self._writer.is_child:
            return False
        if self._requests.holding:
            self.release()  # before anything else: who has taken what was held works with all of this
        if self.preemption.told and self.world is None:
            raise self._preempted(step, episodes, metrics)
        if self._writer.failed:
            self._raise_failure()
        self._step = step
        self._dispatch.progress.step(step)
        reason = self._reasons.at(step, episodes)
        if not reason:
            return False
        ends = self._reasons.ends()
        self.save(step, reason=reason, episodes=episodes, metrics=metrics)
        if ends:
            raise self._preempted(step, episodes, metrics)
        return True

    def _preempted(self, step: int, episodes: int, metrics: Mapping[str, float] | None) -> BaseException:
        """Have the step saved, give everything back, and return what ends the process."""
        told, self._step = self.preemption, step
        save = partial(self.save, step, reason=told.note, episodes=episodes, metrics=metrics, wait=True)
        told.finish(step, save=save, wait=self._finish_save, needed=step != self._newest)
        ended = told.exit()
        self.__exit__(type(ended), ended, None)
        return ended

    def request_save(self, reason: str) -> None:
        """Save as soon as that can be: now, if a snapshot is held, else at the next clean point.

        May be called from any thread, and from a signal handler; raises nothing there. Of several ranks, only
        rank 0's wish counts, and only where they can agree without a fixed number of steps (`World.agree`).
        """
        if not self._writer.is_child:
            with self.preemption.shielded():
                self._requests.ask(SaveRequest(reason))

    def make_due(self, reason: str) -> None:
        """Save at the next clean point, as `request_save` does; what is held is not written for it."""
        if not self._writer.is_child:
            self._requests.ask(SaveRequest(reason, urgent=False))

    def hold(
        self,
        step: int,
        *,
        position: Position = "step",
        episodes: int = 0,
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Copy the state as it is now, and keep it unwritten until `release`: a save that is asked for until
        then is of this state, and is begun at once. Call it at clean points only. Returns whether it is held.

        Waits for a save that is still being written. Nothing is held where the memory for staging does not
        suffice, which is said once, and of several ranks. The next `step`, `save` and `close` release.

        Raises:
            ConfigError: the engine is not running.
            SaveFailed: a save before this one was not written.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        if self._writer.is_child:
            return False
        self.release()
        if self.world is not None:
            return False
        self._opened()
        started = self._clock()
        self._finish_save()
        snapshot = self._snapshots.take()
        self._told.pickled(snapshot)
        if not self._snapshots.stage(snapshot):
            self._dispatch.stood_still(self._clock() - started)
            self._told.once(StagingFullWarning.nothing_is_held())
            return False
        taken = Taken(
            snapshot=snapshot, step=step, position=position, episodes=episodes, metrics=dict(metrics or {}),
            seconds=self._clock() - started,
        )  # fmt: skip
        with self.preemption.shielded():
            self._requests.hold(taken)
        return True

    def release(self) -> None:
        """Drop what is held. What was asked for meanwhile is being written.

        Raises:
            SaveFailed: it was asked for, and could not be begun; it is due again at the next clean point.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        if not self._writer.is_child:
            self._requests.release()
            self._dispatch.stood_still(self._requests.in_vain())

    def _write_held(self, taken: Taken, reason: str) -> None:
        """Have what was held written. Runs in the thread of whoever asked, while the training is elsewhere."""
        self._dispatch.begin(self._opened(), taken, reason)
        self._newest = taken.step

    def save(
        self,
        step: int,
        *,
        reason: str,
        position: Position = "step",
        episodes: int = 0,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
    ) -> None:
        """Save the state as it is now; `wait` until it is committed. Call it at clean points only.

        Returns once the state is copied and it is on record that the save was begun; waits before
        that for a save that is still being written. That of the end is always waited for, and made even if one
        before it has failed; see `is_finished`.

        Raises:
            ConfigError: the engine is not running, or this process was forked from the one that trains.
            SaveFailed: this save, with `wait`, or one before it was not written, or this one not begun.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        self._save(step, reason=reason, position=position, episodes=episodes, metrics=metrics)
        if wait:
            self._finish_save()

    def _save(
        self,
        step: int,
        *,
        reason: str,
        position: Position,
        episodes: int = 0,
        metrics: Mapping[str, float] | None = None,
    ) -> Snapshot:
        run = self._opened()
        if self._writer.is_child:
            raise ConfigError(
                "This process was forked from the one that trains; only that one saves.",
                hint="Start environment workers before the engine, or leave the engine alone in them.",
            )
        self._handed = False
        try:
            with self.preemption.shielded():
                snapshot = self._begin_save(run, step, reason, position, episodes, metrics)
        except Exception as error:
            self._observer.not_saved(error, step=step)
            self._reasons.raised(step)
            if self.world is not None and not self._handed and not lost_a_rank(error):
                tell_not_begun(run, self._writer, error, step=step, segment=self.segment, position=position)
            raise
        self._observer.speak()
        self._dispatch.say()
        return snapshot

    def _begin_save(
        self,
        run: Seat,
        step: int,
        reason: str,
        position: Position,
        episodes: int,
        metrics: Mapping[str, float] | None,
    ) -> Snapshot:
        earlier = self._lost_before(position)
        started, asked = self._clock(), self._requests.pending()
        if position == "end":
            self._snapshots.forget()  # nothing comes after it that could find what was missed
        snapshot = self._snapshots.take()
        # If the process ends from here on, the next one knows what was under way. The disk works while the
        # state is copied, which needs no turn with Python's lock.
        begun = BackgroundCall(partial(run.mark_pending, Step(step), reason, segment=self.segment))
        try:
            staged = self._snapshots.stage(snapshot) if position != "end" else not snapshot.is_live
        finally:
            refused = begun.wait()
        self._told.pickled(snapshot)
        taken = Taken(
            snapshot=snapshot, step=step, position=position, episodes=episodes, metrics=metrics or {}, staged=staged
        )  # fmt: skip
        if refused is None:
            try:
                self._dispatch.hand(run, taken, reason=reason, started=started)
            except (OSError, UnbrokenError) as error:
                refused = error
        if refused is not None:
            self._requests.still_due(reason)
            raise not_begun(step, refused)
        conflict = self._schedule.conflict()
        self._handed = True
        self._requests.made(asked)
        self._step = self._newest = step
        if not staged or position == "end":
            # It still lies in the memory of the training, which therefore waits: slow, but nothing is lost
            # and no memory is taken that is not there.
            if position != "end":
                self._told.once(StagingFullWarning.training_waits())
            self._finish_save()
        self._finished = position == "end"
        if conflict:
            self._told.once(BudgetWarning(conflict))
        if earlier is not None:
            raise earlier
        return snapshot

    def _lost_before(self, position: Position) -> Exception | None:
        """Wait for what was begun before, and raise that it failed. Return it where this save is made all the same:
        at the end, since none comes after it; and of several ranks, since all begin the next one now, and which of
        them has heard of that failure already differs."""
        earlier: Exception | None = None
        for over in (self.release, self._finish_save):
            try:
                over()
            except (Fenced, AmbiguousCommit, ReplicasDiffer):
                raise  # the run may be another's by now
            except Exception as error:
                goes_on = position == "end" or (self.world is not None and isinstance(error, SaveFailed))
                if not goes_on or lost_a_rank(error):
                    raise  # with a rank that is gone there is no next one
                earlier = earlier or error
        return earlier

    def _name_companion(self, process: Process) -> None:
        run = self._opened()
        assert isinstance(run, RunWriter)  # whose ranks have no companions
        run.name_companion(process)

    def _finish_save(self) -> None:
        self._writer.wait()
        if self._writer.failed:
            self._raise_failure()

    def _raise_failure(self) -> None:
        # What failed is due again at once: training must not go on unsaved because someone caught this.
        self._requests.still_due("the save before failed")
        self._writer.check()

    @property
    def _is_ours(self) -> bool:
        return self._run is not None and not self._writer.is_child

    @property
    def is_saving(self) -> bool:
        """Whether a save is still being written."""
        return self._writer.busy

    def wait(self) -> None:
        """Wait until nothing is being written any more. What is held stays.

        Raises:
            SaveFailed: the save before this call was not written, or not begun.
        """
        if not self._writer.is_child:
            self._requests.settle()
        self._finish_save()

    def wait_for_marks(self, seconds: float) -> bool:
        """Wait until what was saved by now is marked in all trackers, at most so many seconds. Return whether it is.

        Raises:
            SaveFailed: as `wait` does, which comes first.
        """
        self.wait()
        return self._trackers.wait(seconds)

    @property
    def is_finished(self) -> bool:
        """Whether the newest save is that of the end of the training, and was written."""
        return self._finished

    def record_workers(self, workers: Iterable[Process]) -> None:
        """Record which processes this training has started, for the next start to end those left behind.

        Raises:
            ConfigError: the engine is not running.
            StoreError: it could not be written.
            Fenced: another process has taken the run over.
        """
        self._opened().record_workers(workers)

    def _opened(self) -> Seat:
        if self._run is None:
            raise ConfigError(
                "The engine is not running.", hint="Call resume() before saving; once closed it is over."
            )
        return self._run

    def _leave(self, error: BaseException | None = None) -> None:
        self.preemption.leave(error)

    def _end(self, reason: str = "") -> None:
        self.preemption.closing()
        lost: Exception | None = None
        try:
            self.release()
        except Exception as error:  # noqa: BLE001 - raised when the run is given back
            lost = error
        self._writer.wait()
        try:
            self._release(note=True, reason=reason or self.preemption.note)
        except UnbrokenError as error:
            # A lost checkpoint is worse than a lost line, which stays visible as the context.
            self._writer.check(again=True)
            if not isinstance(error, StoreError):
                raise
            raise SaveFailed(
                f"That the run ended in order could not be noted: {error}",
                hint="Every checkpoint is intact; the next start takes this end for a kill.",
            ) from error
        self._writer.check(again=True)
        if lost is not None:
            raise lost

    def _release(self, *, note: bool, reason: str = "") -> None:
        self.preemption.closing()
        run, self._run, self._closed = self._run, None, True
        reasons = (["end of training"] if self._finished else []) + ([reason] if reason else [])

        def last(mirrored: list[str]) -> HistoryRecord:
            return last_line(
                self._process, self.settings.job, self._step, reasons + mirrored, time=self._now()
            )

        try:
            atexit.unregister(self._at_exit)
            give_back(
                run, self._dispatch, self._snapshots, self._companion,
                last=last if note else None, left=self.preemption.left,
            )  # fmt: skip
        finally:
            self.preemption.remove()

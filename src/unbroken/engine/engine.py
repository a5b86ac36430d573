"""The engine: decides when to save and from where to go on; knows no framework.

```
adapter: engine.resume()             once, when everything is built and nothing has been trained
         engine.step(step, …)        at every clean point: saves if it is time
         engine.hold(step, …)        there, before something that may take long; see `held`
         engine.save(…, position="end"), engine.close()
```

Invariants: a save is of the state at the call, or of one held before, whatever training does next; before `save` returns it is
on record that the save was begun; a snapshot once taken is written or its failure is raised; there is
always a checkpoint of the start before training goes on.

Not promised: that training may go on from another thread, or in a forked child, with the same engine.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from unbroken.engine import fingerprint
from unbroken.engine.agreement import Agreement, lost_a_rank, tell_not_begun
from unbroken.engine.beside import Beside
from unbroken.engine.budget import BudgetWarning
from unbroken.engine.clone import Origin, clone
from unbroken.engine.companion.trainer import Companion
from unbroken.engine.dispatch import Dispatch, Taken
from unbroken.engine.faults import Traces
from unbroken.engine.held import Held, Wish
from unbroken.engine.memory_limit import free_share
from unbroken.engine.metadata import last_line
from unbroken.engine.progress import VARIABLE, Progress
from unbroken.engine.reading import ReadsRun
from unbroken.engine.recovery import Rebuilder
from unbroken.engine.report import ResumeReport, lowered
from unbroken.engine.resume import Resumption, read_traces
from unbroken.engine.schedule import Clock, Schedule
from unbroken.engine.seat import Seat, check_world, take_seat
from unbroken.engine.settings import Settings
from unbroken.engine.source import ForeseesSize, KnowsThreads, PutsOff, RemembersRows, Source
from unbroken.engine.start import await_companion, find_start, sick_at_first
from unbroken.engine.warnings import StagingFullWarning, Told
from unbroken.engine.world import World, usual
from unbroken.errors import ConfigError, NotCapturable, SaveFailed, StoreError, UnbrokenError
from unbroken.format.records import Position
from unbroken.repo.process import Process, current
from unbroken.repo.repository import Repository
from unbroken.repo.run_writer import RunWriter
from unbroken.state.shared import SharedMemory
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import Staging
from unbroken.types import Step

if TYPE_CHECKING:
    from typing_extensions import Self


class CheckpointEngine(ReadsRun):
    """Saves and resumes one segment of one run.

    `source` is the live training. `segment` is the ordinal of this training within the script.
    `rebuilder` makes the third tier of recovery possible. Settings are overridden by `UNBROKEN_*`
    variables of `environment`. Of several processes that train together each has its engine, with the `world`
    as it sees it: all call `resume`, `step`, `save` and `close` at the same points.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        *,
        segment: int = 0,
        rebuilder: Rebuilder | None = None,
        world: World | None = None,
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
        self.world = usual(world)
        """The processes that train this run together; None where this one is alone."""
        self._source = source
        self._rebuilder = rebuilder
        self._clock = clock
        self._now = now
        self._progress_path = environment.get(VARIABLE) if self._speaks else None
        self._process = current()
        self._schedule = Schedule(self.settings.interval, clock)
        self._agreement: Agreement | None = None
        if self.world is not None:
            check_world(self.world, self.settings)
            self._agreement = Agreement(self.world, self._schedule)
        self._run: Seat | None = None
        self._wish: Wish | None = None
        """The save that was asked for last, until it is made."""
        self._held = Held()
        self._step = 0
        self._finished = False
        self._handed = False
        """Whether the save that was begun last is the writer's by now."""
        self._closed = False
        self._told = Told()
        memory = SharedMemory() if self.settings.writer == "process" else None
        self._companion = None if memory is None else Companion(memory, self._name_companion)
        self._touching: Beside | None = None
        given = self.settings.staging
        self._staging = Staging(free_share if given is None else lambda: given, memory)
        self._dispatch = Dispatch(
            source, self.settings, segment=segment, process=self._process, schedule=self._schedule,
            companion=self._companion, clock=clock, now=now,
        )  # fmt: skip
        self._facts, self._writer = self._dispatch.facts, self._dispatch.writer

    def resume(self, *, step: int = 0, origin: Origin | None = None) -> ResumeReport:
        """Bring the live objects to where the run goes on, and say from where that is.

        A fresh start begins at `step` and commits a checkpoint of it at once. With an `origin` the run goes
        on as a clone of that checkpoint of another run, whatever it holds itself; see `clone`.

        Raises:
            RunBusy: another process works on the run.
            RankMissing: of several ranks not all are there, or some say nothing in time.
            StateMismatch, Untrusted: the checkpoint does not fit, or may not be loaded; nothing was touched.
            NoUsableCheckpoint: there are checkpoints and none can be used.
            RestoreFailed: the live objects are in no usable state.
            SaveFailed: the checkpoint of the start could not be written.
        """
        if self._run is not None or self._closed:
            raise ConfigError("This engine has resumed already.", hint="Make one engine for each training.")
        self._facts.versions = fingerprint.versions()
        threads = self._source.threads() if isinstance(self._source, KnowsThreads) else None
        self._facts.fingerprint = fingerprint.fingerprint(threads)
        repository = self._repository(create=True)
        traces = Traces(known=False)
        if self._speaks:
            await_companion(repository)
            traces = read_traces(repository, self._process)
        self._run = take_seat(repository, self.settings, self.world, self._process)
        atexit.register(self._at_exit)
        try:
            self._dispatch.progress = Progress(self._progress_path)
            return self._resume(repository, self._run, traces, step, origin)
        except BaseException:
            # The script ends or goes on without us; either way the run is free for another process.
            self._release(note=False)
            raise

    def _resume(
        self, repository: Repository, run: Seat, traces: Traces, step: int, origin: Origin | None
    ) -> ResumeReport:
        started = self._clock()
        if origin is not None:
            found = clone(origin, self._source, self.settings, self.world, segment=self.segment)
        else:
            found = find_start(
                repository, run, self._source, self.settings, self.world,
                segment=self.segment, rebuilder=self._rebuilder, traces=traces,
            )  # fmt: skip
        self._step = found.step if found.commit is not None or found.restored else step
        self._facts.damaged = found.damaged
        self._facts.sick_from_birth = sick_at_first(repository, found)
        if not found.restored:
            self._facts.birth = run.write_birth(found.skeleton, segment=self.segment)
            state = self._save(step, reason="start of training", position="start")
            self._finish_save()
            found = found.at_start(step, state)
        else:
            self._dispatch.progress.committed(self._step)
            born = "" if found.birth is None else found.birth
            # Commits name the document they go with, so older ones are still judged by theirs.
            self._facts.birth = (
                run.write_birth(found.skeleton, segment=self.segment) if found.adopted or not born else born
            )
            if origin is not None:
                self._settle(found)
            elif found.adopted and self.world is None:
                self.request_save("settings were changed")
        if found.position != "end" and isinstance(self._source, ForeseesSize):
            # Fresh memory can cost a second a GB. The first save waits for it, not the training's start.
            self._touching = Beside(partial(self._staging.reserve, self._source.expected_bytes()))
        self._schedule.begin(self._step, found.episodes)
        self._dispatch.progress.step(self._step)
        report = found.report(
            versions=self._facts.versions,
            fingerprint=self._facts.fingerprint,
            seconds=self._clock() - started,
        )
        self._facts.inexact = report.inexact
        run.append_history(
            found.history(report, job=self.settings.job, process=self._process, time=self._now())
        )
        return report

    @property
    def _speaks(self) -> bool:
        """Whether this process stands for the run: it is alone, or rank 0."""
        return self.world is None or self.world.is_coordinator

    def _settle(self, found: Resumption) -> None:
        """Commit a clone before it trains: else a kill would bring back what this run was before."""
        if isinstance(self._source, RemembersRows):
            self._source.forget()  # what it builds on lies in another run
        self._save(self._step, reason=f"cloned from {found.origin}", position="step", episodes=found.episodes)
        self._finish_save()

    def step(self, step: int, *, episodes: int = 0, metrics: Mapping[str, float] | None = None) -> bool:
        """Tell that training is at a clean point; save if it is time. Returns whether it saved.

        Costs about a microsecond if it is not. While a save is being written the next one waits for
        a later clean point; of several ranks training waits for the save, since all save at the same step.

        Raises:
            SaveFailed: a save before this one was not written, or this one not begun.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        if self._writer.is_child:
            return False
        if self._writer.failed:
            self._raise_failure()
        if self._held.present:
            self.release()
        self._step = step
        self._dispatch.progress.step(step)
        reason = "" if self._writer.busy else self._reason(step, episodes)
        if self._agreement is not None:
            reason = self._agreement.reason(step, episodes, reason)
        if not reason:
            return False
        self.save(step, reason=reason, episodes=episodes, metrics=metrics)
        return True

    def _reason(self, step: int, episodes: int) -> str:
        """Return why to save at this point, an empty string if there is no reason."""
        wish = self._wish
        if wish is not None:
            return wish.reason
        due = self._schedule.due(step, episodes)
        if due and isinstance(self._source, PutsOff) and self.world is None and self._source.puts_off():
            return ""
        return due

    def request_save(self, reason: str, *, at_once: bool = True) -> None:
        """Save as soon as that can be: now, if a snapshot is held (unless not `at_once`), else at the next
        clean point.

        May be called from any thread, and from a signal handler; raises nothing there. Of several ranks, only
        rank 0's wish counts, and only where they can agree without a fixed number of steps (`World.agree`).
        """
        if self._writer.is_child:
            return
        self._wish = Wish(reason)
        if at_once:
            self._write_held()

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
            SaveFailed: a save before this one was not written.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        self.release()
        if self._writer.is_child or self.world is not None:
            return False
        self._opened()
        self._finish_save()
        started = self._clock()
        snapshot = self._capture()
        self._told.pickled(snapshot)
        if not self._staging.take(snapshot):
            self._told.once(StagingFullWarning.nothing_is_held())
            return False
        self._held.put(
            Taken(
                snapshot=snapshot, step=step, position=position, episodes=episodes, metrics=dict(metrics or {}),
                seconds=self._clock() - started,
            )
        )  # fmt: skip
        if self._wish is not None:
            self._write_held()  # asked for before there was anything to write
        return True

    def release(self) -> None:
        """Drop what is held. What was asked for meanwhile is being written.

        Raises:
            SaveFailed: it was asked for, and could not be begun; it is due again at the next clean point.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        lost = self._held.drop()
        if lost is not None:
            raise lost

    def _write_held(self) -> None:
        """Write what is held, if anything is, in the thread of whoever asked."""
        taken, wish = self._held.take(), self._wish
        if taken is None:
            return
        if wish is None:  # made meanwhile by another who asked
            self._held.settle()
            return
        started, reason, failure = self._clock(), wish.reason, None
        try:
            run = self._opened()
            run.mark_pending(Step(taken.step), reason, segment=self.segment)
            self._dispatch.hand(run, taken, reason=reason, started=started)
            self._made(wish)
        except Exception as error:  # noqa: BLE001 - for the training's thread, which raises it in `release`
            failure = self._not_begun(taken.step, error, reason)
        finally:
            self._held.settle(failure)

    def _made(self, wish: Wish | None) -> None:
        # Asked for again meanwhile, it is another wish and stays.
        if self._wish is wish:
            self._wish = None

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
        that for a save that is still being written.

        Raises:
            SaveFailed: this save, with `wait`, or one before it was not written, or this one not begun.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        self._save(step, reason=reason, position=position, episodes=episodes, metrics=metrics)
        if wait or position == "end":
            self._finish_save()
        self._finished = position == "end"

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
            return self._begin_save(run, step, reason, position, episodes, metrics)
        except Exception as error:
            if self._agreement is not None:
                self._agreement.raised(step)
                if not self._handed and not lost_a_rank(error):
                    tell_not_begun(
                        run, self._writer, error, step=step, segment=self.segment, position=position
                    )
            raise

    def _begin_save(
        self,
        run: Seat,
        step: int,
        reason: str,
        position: Position,
        episodes: int,
        metrics: Mapping[str, float] | None,
    ) -> Snapshot:
        self.release()
        earlier = self._lost_before()
        started, wish = self._clock(), self._wish
        if position == "end" and isinstance(self._source, RemembersRows):
            self._source.forget()  # nothing comes after it that could find what was missed
        snapshot = self._capture()
        # If the process ends from here on, the next one knows what was under way. The disk works while the
        # state is copied, which needs no turn with Python's lock.
        begun = Beside(partial(run.mark_pending, Step(step), reason, segment=self.segment))
        try:
            staged = self._staging.take(snapshot) if position != "end" else not snapshot.is_live
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
            raise self._not_begun(step, refused, reason)
        conflict = self._schedule.conflict()
        self._handed = True
        self._made(wish)
        self._step = step
        if not staged:
            # It still lies in the memory of the training, which therefore waits: slow, but nothing is lost
            # and no memory is taken that is not there.
            if position != "end":
                self._told.once(StagingFullWarning.training_waits())
            self._finish_save()
        if conflict:
            self._told.once(BudgetWarning(conflict))
        if earlier is not None:
            raise earlier
        return snapshot

    def _capture(self) -> Snapshot:
        snapshot = self._source.capture()
        snapshot.promises = lowered(snapshot.promises, self._facts.inexact)
        self._finish_touching()
        return snapshot

    def _lost_before(self) -> SaveFailed | None:
        """Wait for the save before, and raise that it failed. Of several ranks return it: all begin the next one
        now, and which of them has heard of that failure already differs."""
        try:
            self._finish_save()
        except SaveFailed as error:
            if self._agreement is None or lost_a_rank(error):
                raise  # with a rank that is gone there is no next one
            return error
        return None

    def _finish_touching(self) -> None:
        touching, self._touching = self._touching, None
        if touching is not None:
            touching.wait()  # where it has failed, `take` will find out

    def _not_begun(self, step: int, error: BaseException, reason: str) -> BaseException:
        """Return what tells that a save could not be begun; it is still due."""
        if not isinstance(error, (OSError, NotCapturable)):  # errors of the store are OSErrors
            return error
        self._still_due(reason)
        failure = SaveFailed(
            f"The save of step {step:,} could not be begun: {error}",
            hint="Checkpoints committed before it are intact.",
        )
        failure.__cause__ = error
        return failure

    def _still_due(self, reason: str) -> None:
        if self._wish is None:
            self._wish = Wish(reason)

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
        self._still_due("the save before failed")
        self._writer.check()

    @property
    def is_saving(self) -> bool:
        """Whether a save is still being written."""
        return self._writer.busy

    def wait(self) -> None:
        """Wait until nothing is being written any more.

        Raises:
            SaveFailed: the save before this call was not written.
        """
        self._finish_save()

    def record_workers(self, workers: Iterable[Process]) -> None:
        """Record which processes this training has started, for the next start to end those left behind.

        Raises:
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

    def close(self) -> None:
        """Wait for the last save, say that the run ended in order, and give it back.

        The run is given back in any case.

        Raises:
            SaveFailed: the last save was not written, or the end of the run not noted.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
        """
        if self._run is None or self._writer.is_child:
            return
        self._end()

    def _end(self, reason: str = "") -> None:
        lost = self._held.drop()
        self._writer.wait()
        try:
            self._release(note=True, reason=reason)
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
        run, self._run = self._run, None
        self._closed = True
        atexit.unregister(self._at_exit)
        self._writer.wait()  # whoever comes here early has not; the run is not given back under it
        self._dispatch.progress.close()
        if isinstance(self._source, RemembersRows):
            self._source.release()
        if self._companion is not None:
            self._companion.close()
        self._finish_touching()
        self._staging.release()
        if run is None:
            return
        try:
            if note:
                reasons = [reason] if reason else (["end of training"] if self._finished else [])
                run.append_history(
                    last_line(self._process, self.settings.job, self._step, reasons, time=self._now())
                )
        finally:
            run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except UnbrokenError as failure:
            if error is None:
                raise
            # The error of the training is the one to see; ours is told beside it.
            sys.stderr.write(f"unbroken: {failure}\n")

    def _at_exit(self) -> None:
        if self._writer.is_child:
            return
        error = getattr(sys, "last_value", None)
        try:
            self._end("" if error is None else f"{type(error).__name__}: {error}"[:500])
        except UnbrokenError as failure:
            sys.stderr.write(f"unbroken: {failure}\n")

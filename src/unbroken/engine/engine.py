"""The engine: decides when to save and from where to go on; knows no framework.

```
adapter: engine.resume()             once, when everything is built and nothing has been trained
         engine.step(step, …)        at every clean point: saves if it is time
         engine.save(…, position="end"), engine.close()
```

Invariants: a save is of the state at the call, whatever training does next; before `save` returns it is
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
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from unbroken.engine import fingerprint
from unbroken.engine.agreement import Agreement, lost_a_rank, tell_not_begun
from unbroken.engine.beside import Beside
from unbroken.engine.budget import BudgetWarning
from unbroken.engine.clone import Origin, clone
from unbroken.engine.companion.letter import Work
from unbroken.engine.companion.trainer import Companion, name_of
from unbroken.engine.faults import Traces
from unbroken.engine.memory_limit import free_share
from unbroken.engine.metadata import Circumstances, describe, last_line
from unbroken.engine.progress import VARIABLE, Progress
from unbroken.engine.reading import ReadsRun
from unbroken.engine.recovery import Rebuilder
from unbroken.engine.report import ResumeReport, lowered
from unbroken.engine.resume import Resumption, read_traces
from unbroken.engine.saving import Carry, Committed, Keeping, Order, carry_out
from unbroken.engine.schedule import Clock, Schedule
from unbroken.engine.seat import Seat, check_world, take_seat
from unbroken.engine.settings import Settings
from unbroken.engine.source import ForeseesSize, InspectsWeights, KnowsThreads, RemembersRows, Source
from unbroken.engine.start import await_companion, find_start, sick_at_first
from unbroken.engine.warnings import PickledPartsWarning, StagingFullWarning, Told
from unbroken.engine.world import World, usual
from unbroken.engine.writer import BackgroundWriter
from unbroken.errors import (
    ConfigError,
    CorruptObject,
    InternalError,
    NotCapturable,
    RankMissing,
    SaveFailed,
    StoreError,
    UnbrokenError,
)
from unbroken.format.records import Position
from unbroken.repo.process import Process, current
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.repo.run_writer import RunWriter
from unbroken.state.shared import SharedMemory
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import Staging
from unbroken.types import Sequence, Step

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
        self._writer = BackgroundWriter()
        self._progress = Progress(None)
        self._schedule = Schedule(self.settings.interval, clock)
        self._agreement: Agreement | None = None
        if self.world is not None:
            check_world(self.world, self.settings)
            self._agreement = Agreement(self.world, self._schedule)
        self._run: Seat | None = None
        self._requested = ""
        self._step = 0
        self._finished = False
        self._handed = False
        """Whether the save that was begun last is the writer's by now."""
        self._closed = False
        self._inexact: tuple[str, ...] = ()
        self._birth = ""
        """Name of the birth document that the settings of this process go with."""
        self._sick_from_birth: frozenset[str] | None = None
        """Weights that were not finite when the run began; None until its first checkpoint tells."""
        self._damaged: frozenset[Sequence] = frozenset()
        self._told = Told()
        memory = SharedMemory() if self.settings.writer == "process" else None
        self._companion = None if memory is None else Companion(memory, self._name_companion)
        self._touching: Beside | None = None
        self._staging = Staging(self._staging_ceiling, memory)
        self._versions: Mapping[str, str] = {}
        self._fingerprint: Mapping[str, str] = {}

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
        self._versions = fingerprint.versions()
        threads = self._source.threads() if isinstance(self._source, KnowsThreads) else None
        self._fingerprint = fingerprint.fingerprint(threads)
        repository = self._repository(create=True)
        traces = Traces(known=False)
        if self._speaks:
            await_companion(repository)
            traces = read_traces(repository, self._process)
        self._run = take_seat(repository, self.settings, self.world, self._process)
        atexit.register(self._at_exit)
        try:
            self._progress = Progress(self._progress_path)
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
        self._damaged = found.damaged
        self._sick_from_birth = sick_at_first(repository, found)
        if not found.restored:
            self._birth = run.write_birth(found.skeleton, segment=self.segment)
            state = self._save(step, reason="start of training", position="start")
            self._finish_save()
            found = found.at_start(step, state)
        else:
            self._progress.committed(self._step)
            born = "" if found.birth is None else found.birth
            # Commits name the document they go with, so older ones are still judged by theirs.
            self._birth = (
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
        self._progress.step(self._step)
        report = found.report(
            versions=self._versions, fingerprint=self._fingerprint, seconds=self._clock() - started
        )
        self._inexact = report.inexact
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
        self._step = step
        self._progress.step(step)
        busy = self._writer.busy
        reason = "" if busy else self._requested or self._schedule.due(step, episodes)
        if self._agreement is not None:
            reason = self._agreement.reason(step, episodes, reason)
        if not reason:
            return False
        self.save(step, reason=reason, episodes=episodes, metrics=metrics)
        return True

    def request_save(self, reason: str) -> None:
        """Save at the next clean point. Of several ranks, only rank 0's wish counts, and only where they can
        agree without a fixed number of steps (`World.agree`)."""
        self._requested = reason

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
        earlier = self._lost_before()
        started = self._clock()
        if position == "end" and isinstance(self._source, RemembersRows):
            self._source.forget()  # nothing comes after it that could find what was missed
        snapshot = self._source.capture()
        snapshot.promises = lowered(snapshot.promises, self._inexact)
        self._finish_touching()
        # If the process ends from here on, the next one knows what was under way. The disk works while the
        # state is copied, which needs no turn with Python's lock.
        begun = Beside(partial(run.mark_pending, Step(step), reason, segment=self.segment))
        try:
            staged = self._staging.take(snapshot) if position != "end" else not snapshot.is_live
        finally:
            refused = begun.wait()
        if refused is not None:
            self._raise_not_begun(step, reason, refused)
        if pickled := [note.place for note in snapshot.notes if note.kind == "opaque"]:
            self._told.once(PickledPartsWarning.of(pickled))
        companion = self._companion if staged and position != "end" else None
        try:
            draft = None if companion is None else companion.draft(snapshot)
        except NotCapturable as error:
            self._raise_not_begun(step, reason, error)
        circumstances = Circumstances(
            job=self.settings.job,
            step=step,
            segment=self.segment,
            position=position,
            reason=reason,
            time=self._now(),
            process=self._process,
            episodes=episodes,
            metrics=dict(metrics or {}),
            versions=self._versions,
            fingerprint=self._fingerprint,
            seconds_blocked=self._clock() - started,
            birth=self._birth,
            inexact=self._inexact,
        )
        order = Order(
            meta=describe(snapshot, circumstances),
            keeping=Keeping.under(self.settings, damaged=self._damaged),
            sick_from_birth=self._sick_from_birth,
        )
        carry: Carry
        if companion is None or draft is None:
            carry = partial(self._carry_here, run, order, snapshot)
        else:
            try:
                companion.hand(draft, self._work(run, order, snapshot))
            except (OSError, UnbrokenError) as error:
                self._raise_not_begun(step, reason, error)
            self._progress.handed(step)
            carry = partial(companion.outcome, snapshot)
        self._schedule.saved(step, episodes, blocked=self._clock() - started)
        conflict = self._schedule.conflict()
        self._writer.submit(f"step {step:,}", partial(self._write, run, snapshot, step, carry))
        self._handed = True
        self._requested = ""
        self._step = step
        if not staged:
            # It still lies in the memory of the training, which therefore waits: slow, but nothing is lost
            # and no memory is taken that is not there.
            if position != "end":
                self._told.once(
                    StagingFullWarning(
                        "A snapshot needs more memory than may be taken for it, so"
                        " training waits while it is written. Allow more with staging=, for example staging=8 * 2**30."
                    )
                )
            self._finish_save()
        if conflict:
            self._told.once(BudgetWarning(conflict))
        if earlier is not None:
            raise earlier
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

    def _raise_not_begun(self, step: int, reason: str, error: BaseException) -> NoReturn:
        """Raise what tells that a save could not be begun; it is still due."""
        if not isinstance(error, (OSError, NotCapturable)):  # errors of the store are OSErrors
            raise error
        self._requested = self._requested or reason
        raise SaveFailed(
            f"The save of step {step:,} could not be begun: {error}",
            hint="Checkpoints committed before it are intact.",
        ) from error

    def _work(self, run: Seat, order: Order, snapshot: Snapshot) -> Work:
        """Return the order with all that another process needs to carry it out."""
        source, inspector = self._source, ""
        if isinstance(source, InspectsWeights):
            inspector = name_of(source.sick_places)
            if not inspector:
                order = replace(order, sick=frozenset(source.sick_places(snapshot)))
        assert isinstance(run, RunWriter)
        root = root_of(self.settings.root).text
        return Work(root=root, job=self.settings.job, pen=run.lend(), order=order, inspector=inspector)

    def _name_companion(self, process: Process) -> None:
        run = self._opened()
        assert isinstance(run, RunWriter)  # whose ranks have no companions
        run.name_companion(process)

    def _carry_here(self, run: Seat, order: Order, snapshot: Snapshot, committed: Committed) -> None:
        """Carry out a save in this process, which takes the pen for it."""
        if self._companion is not None:
            self._companion.dismiss()
        source = self._source
        inspect = source.sick_places if isinstance(source, InspectsWeights) else None
        carry_out(order, snapshot, run.checkpoints, inspect=inspect, committed=committed)

    def _write(self, run: Seat, snapshot: Snapshot, step: int, carry: Carry) -> None:
        """Runs in the writer's thread; of live objects it only reads rows of rings, for the audit."""
        source, started = self._source, self._clock()
        durable: list[float] = []

        def committed(sick_from_birth: frozenset[str]) -> None:
            self._sick_from_birth = sick_from_birth
            if isinstance(source, RemembersRows):
                source.committed(snapshot)
            durable.append(self._clock() - started)
            self._progress.committed(step)

        try:
            carry(committed)
        except (CorruptObject, InternalError, RankMissing, SaveFailed) as error:
            if isinstance(source, RemembersRows):
                source.forget()  # what it built on cannot be trusted, or may be gone
            if isinstance(error, SaveFailed):
                run.lose_pen()
            raise
        except StoreError as error:
            if not durable:
                raise
            raise SaveFailed(
                f"The checkpoint of step {step:,} is saved, but what it replaces could not be removed: {error}",
                hint="Nothing is lost; until this is mended the run takes more and more room.",
            ) from error
        if isinstance(source, RemembersRows):
            try:
                source.audit(run.chunks, step=step)
            except (CorruptObject, StoreError):
                # The checkpoint is there, so the save has not failed. But what could not be looked at may
                # have been changed or damaged: nothing is built on it.
                source.forget()
        self._schedule.written(durable=durable[0], busy=self._clock() - started)

    def _finish_save(self) -> None:
        self._writer.wait()
        if self._writer.failed:
            self._raise_failure()

    def _raise_failure(self) -> None:
        # What failed is due again at once: training must not go on unsaved because someone caught this.
        self._requested = self._requested or "the save before failed"
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

    def _staging_ceiling(self) -> int:
        given = self.settings.staging
        return free_share() if given is None else given

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

    def _release(self, *, note: bool, reason: str = "") -> None:
        run, self._run = self._run, None
        self._closed = True
        atexit.unregister(self._at_exit)
        self._writer.wait()  # whoever comes here early has not; the run is not given back under it
        self._progress.close()
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

"""From a snapshot in memory to a checkpoint: what is said about it, who writes it, what follows.

The engine decides when; this hands a snapshot over to a thread of this process or to the companion, and
hears of the outcome. Invariant: what was handed over is written, or its failure is kept in the writer until
somebody is told.

A snapshot may be handed over by another thread than the training's: by who asks for a save while one is held.

Not promised: that two threads may hand over at once. Of what is held one alone has it, and the training waits for
that one before it calls anything here.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from unbroken.engine.companion.letter import Work
from unbroken.engine.companion.trainer import Companion, name_of
from unbroken.engine.full_disk import DiskFullWarning
from unbroken.engine.keeping import Keeping
from unbroken.engine.metadata import Circumstances, describe
from unbroken.engine.mirroring import Mirroring
from unbroken.engine.observer import Nobody, Observer, Saved
from unbroken.engine.progress import Progress
from unbroken.engine.rebuild import JournalKeeper
from unbroken.engine.saving import Carry, Committed, Order, Outcome, carry_out
from unbroken.engine.schedule import Clock, Schedule
from unbroken.engine.seat import Seat
from unbroken.engine.settings import Settings
from unbroken.engine.source import InspectsWeights, RemembersRows, Source
from unbroken.engine.writer import BackgroundWriter
from unbroken.errors import CorruptObject, InternalError, NotCapturable, RankMissing, SaveFailed, StoreError
from unbroken.format.records import Position
from unbroken.repo.process import Process
from unbroken.repo.roots import root_of
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.saves import SaveRecordWarning
from unbroken.state.snapshot import Snapshot
from unbroken.types import Sequence, Step


@dataclass(slots=True, kw_only=True)
class Taken:
    """A snapshot with what is known of its moment. `seconds` is how long training has waited for it.

    `staged` says whether it owns its bytes; if not, training waits until it is written. `thread` is the one of
    the training, in which it was taken."""

    snapshot: Snapshot
    step: int
    position: Position
    episodes: int
    metrics: Mapping[str, float]
    seconds: float = 0.0
    staged: bool = True
    thread: int = field(default_factory=threading.get_ident)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """What is the same for all saves of one engine, known once it has resumed."""

    birth: str = ""
    """Name of the birth document that the settings of this process go with."""
    damaged: frozenset[Sequence] = frozenset()
    inexact: tuple[str, ...] = ()
    """What has set the run apart from an undisturbed one."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    fingerprint: Mapping[str, str] = field(default_factory=dict[str, str])


class Dispatch:
    """Hands snapshots of `source` over, for one segment of one run."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        *,
        segment: int,
        process: Process,
        schedule: Schedule,
        companion: Companion | None,
        clock: Clock = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.writer = BackgroundWriter()
        self.context = SaveContext()
        self.sick_from_birth: frozenset[str] | None = None
        """Weights that were not finite when the run began; None until its first checkpoint tells."""
        self._unrecorded = ""
        """Why the newest save that is not on record is not."""
        self._said = False
        self._relieved: list[str] = []
        """What full disks have cost, as long as it is not said."""
        self._stood_still = 0.0
        """Seconds that no save has been charged with yet."""
        self.progress = Progress(None)
        self.observer: Observer = Nobody()
        self.trackers: Callable[[], Mapping[str, Mapping[str, str]]] = dict
        """Says which runs of trackers the training logs to."""
        self.journal: JournalKeeper | None = None
        self.mirroring: Mirroring | None = None
        """Copies what is committed to a second place, where there is one."""
        self._source = source
        self._settings = settings
        self._segment = segment
        self._process = process
        self._schedule = schedule
        self._companion = companion
        self._clock = clock
        self._now = now

    def stood_still(self, seconds: float) -> None:
        """Charge the next save with what training has waited for and nothing came of: a copy that was dropped."""
        self._stood_still += seconds

    def say(self) -> None:
        """Warn of what has gone wrong beside the checkpoints. To be called by the training's thread."""
        for beside in (self.mirroring, self.journal):
            if beside is not None:
                beside.say()
        if self._unrecorded and not self._said:
            self._said = True
            warnings.warn(SaveRecordWarning.of(self._unrecorded), stacklevel=4)
        while self._relieved:
            warnings.warn(DiskFullWarning(self._relieved.pop(0)), stacklevel=4)

    def begin(self, run: Seat, taken: Taken, reason: str) -> None:
        """Put on record that `taken` is saved, and hand it over.

        Raises:
            SaveFailed: it could not be begun. Fenced, AmbiguousCommit: as they come.
        """
        started = self._clock()
        try:
            run.mark_pending(Step(taken.step), reason, segment=self._segment)
            self.hand(run, taken, reason=reason, started=started)
        except Exception as error:  # noqa: BLE001 - raised, as what it means here
            self.observer.not_saved(error, step=taken.step)
            raise not_begun(taken.step, error)  # noqa: B904 - it has its cause

    def hand(self, run: Seat, taken: Taken, *, reason: str, started: float) -> None:
        """Have `taken` written; return once it is in the writer's hands. `started` is when that was begun: from
        there on training waits, unless another thread does it; `taken.seconds` is what it had waited before.

        Raises:
            NotCapturable: the state is nested too deeply for another process to write it.
            OSError, UnbrokenError: it could not be handed over.
        """
        context, snapshot, step = self.context, taken.snapshot, taken.step
        waits = taken.thread == threading.get_ident()

        def blocked() -> float:
            return self._stood_still + taken.seconds + (self._clock() - started if waits else 0.0)

        companion = self._companion if taken.staged and taken.position != "end" else None
        draft = None if companion is None else companion.draft(snapshot)
        circumstances = Circumstances(
            job=self._settings.job,
            step=step,
            segment=self._segment,
            position=taken.position,
            reason=reason,
            time=self._now(),
            process=self._process,
            episodes=taken.episodes,
            metrics=dict(taken.metrics),
            versions=context.versions,
            fingerprint=context.fingerprint,
            seconds_blocked=blocked(),
            birth=context.birth,
            inexact=context.inexact,
            max_overhead=self._settings.interval.max_overhead,
            trackers=self.trackers(),
        )
        order = Order(
            meta=describe(snapshot, circumstances),
            keeping=Keeping.under(self._settings, damaged=context.damaged),
            sick_from_birth=self.sick_from_birth,
        )
        carry: Carry
        if companion is None or draft is None:
            carry = partial(self._carry_here, run, order, snapshot)
        else:
            companion.hand(draft, self._work(run, order, snapshot))
            self.progress.handed(step)
            carry = partial(companion.outcome, snapshot)
        if self.journal is not None:
            carry = self.journal.beside(carry, snapshot, order.meta)
        stood_still = blocked()
        self._schedule.saved(step, taken.episodes, blocked=stood_still)
        self._stood_still = 0.0
        work = partial(self._write, run, snapshot, step, carry, stood_still)
        self.writer.submit(f"step {step:,}", work)

    def _work(self, run: Seat, order: Order, snapshot: Snapshot) -> Work:
        """Return the order with all that another process needs to carry it out."""
        source, inspector = self._source, ""
        if isinstance(source, InspectsWeights):
            inspector = name_of(source.sick_places)
            if not inspector:
                order = replace(order, sick=frozenset(source.sick_places(snapshot)))
        assert isinstance(run, RunWriter)
        root = root_of(self._settings.root).text
        return Work(
            root=root, job=self._settings.job, pen=run.lend(), order=order,
            compression=self._settings.codec, inspector=inspector,
        )  # fmt: skip

    def _carry_here(self, run: Seat, order: Order, snapshot: Snapshot, committed: Committed) -> Outcome:
        """Carry out a save in this process, which takes the pen for it."""
        if self._companion is not None:
            self._companion.dismiss()
        source = self._source
        inspect = source.sick_places if isinstance(source, InspectsWeights) else None
        return carry_out(order, snapshot, run.checkpoints, inspect=inspect, committed=committed)

    def _write(self, run: Seat, snapshot: Snapshot, step: int, carry: Carry, blocked: float) -> None:
        """Runs in the writer's thread; of live objects it only reads rows of rings, for the audit."""
        started = self._clock()
        durable: list[float] = []
        try:
            self._carried(run, snapshot, step, carry, started, durable)
        except BaseException as error:
            self.observer.not_saved(error, step=step, committed=bool(durable))
            raise
        finally:
            if durable and self.mirroring is not None:
                self.mirroring.soon()
        busy = self._clock() - started
        self._schedule.written(durable=durable[0], busy=busy)
        self.observer.saved(Saved(step=step, blocked=blocked, durable=durable[0], busy=busy))

    def _carried(
        self, run: Seat, snapshot: Snapshot, step: int, carry: Carry, started: float, durable: list[float]
    ) -> None:
        """Have a save carried out; `durable` gets the seconds after which it was."""
        source = self._source

        def committed(sick_from_birth: frozenset[str]) -> None:
            self.sick_from_birth = sick_from_birth
            if isinstance(source, RemembersRows):
                source.committed(snapshot)
            durable.append(self._clock() - started)
            self.progress.committed(step)

        try:
            outcome = carry(committed)
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
        self._unrecorded = outcome.unrecorded or self._unrecorded
        if outcome.relieved:
            self._relieved.append(outcome.relieved)
        if isinstance(source, RemembersRows):
            try:
                source.audit(run.chunks, step=step)
            except (CorruptObject, StoreError):
                # The checkpoint is there, so the save has not failed. But what could not be looked at may
                # have been changed or damaged: nothing is built on it.
                source.forget()


def not_begun(step: int, error: BaseException) -> BaseException:
    """Return what is raised where a save could not be begun for this reason."""
    if not isinstance(error, (OSError, NotCapturable)):  # errors of the store are OSErrors
        return error
    failure = SaveFailed(
        f"The save of step {step:,} could not be begun: {error}",
        hint="Checkpoints committed before it are intact.",
    )
    failure.__cause__ = error
    return failure

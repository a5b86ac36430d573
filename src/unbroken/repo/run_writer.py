"""The right of one process to write to a run: lock, epoch, and the records that say what it is doing.

Checkpoints themselves are written by a `CheckpointWriter`, here or in another process: `lend` gives the
pen away, and the next use of `checkpoints` takes it back.

Not promised: that whoever has borrowed the pen is done with it when it is taken back. See to that first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

import msgspec

from unbroken.errors import CorruptObject, InternalError, StoreError
from unbroken.format import layout, wire
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.format.meta import Meta
from unbroken.format.records import Commit, HistoryRecord, Pending, Worker, WorkersRecord
from unbroken.format.saves import SaveRecord
from unbroken.repo import aside, birth, collect, fencing, saves
from unbroken.repo.ballast import spending
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists
from unbroken.repo.compaction import Compacted
from unbroken.repo.coordinator import Coordinator, Ranks
from unbroken.repo.lock import RunLock, await_companion
from unbroken.repo.log import read_log
from unbroken.repo.pen import Pen
from unbroken.repo.pending import remove_settled
from unbroken.repo.process import Process
from unbroken.repo.retention import RetentionPlan
from unbroken.repo.seal import seal
from unbroken.repo.writer import TEMPORARY_SECONDS, CheckpointWriter
from unbroken.state.snapshot import Base, Snapshot
from unbroken.store.base import ByteStore, SupportsLocalHints, append, note
from unbroken.types import Digest, Step

T = TypeVar("T")


class RunWriter:
    """The right to write to a run. Comes from `Repository.writer`; a context manager."""

    def __init__(
        self,
        store: ByteStore,
        job: str,
        *,
        lock: RunLock,
        pen: Pen,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
        ranks: Ranks | None = None,
    ) -> None:
        self.job = job
        self.epoch = pen.claim.epoch
        self.coordinator = None if ranks is None else Coordinator(store, pen.claim, ranks)
        """What speaks to the other ranks of the run; None where there are none."""
        self._store = store
        self._lock = lock
        self._pen = pen
        self._compression = compression
        self._clock = clock
        self._token = token
        self._signing_key = signing_key
        self._checkpoints: CheckpointWriter | None = None
        self._lost = False
        self._index = BlobIndex(store)
        """For reading while the pen is lent."""

    @classmethod
    def open(
        cls,
        store: ByteStore,
        job: str,
        *,
        suspect: set[str],
        document_format: DocumentFormat,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
        owner: Process | None,
        patience: float,
        ranks: Ranks | None = None,
    ) -> RunWriter:
        """Take the run: lock, epoch, start; then sweep, and wait for the ranks. See `Repository.writer`."""
        await_companion(store, patience=patience, here=owner)
        lock = RunLock.acquire(store, job=job, owner=owner)
        try:
            owner = lock.owner
            claim = spending(
                store, lambda: fencing.claim(store, token=token, owner=owner, job=job, time=clock())
            )
            spending(store, lambda: lock.publish(epoch=claim.epoch, now=clock()))
            first = spending(store, lambda: fencing.start(store, claim, last=read_log(store).last))
            writer = cls(
                store,
                job,
                lock=lock,
                pen=Pen(claim, lock.owner, first, document_format, set(), suspect),
                compression=compression,
                clock=clock,
                token=token,
                signing_key=signing_key,
                ranks=ranks,
            )
            # Here nobody but a dead or a fenced process can have temporary files, or another rank.
            try:
                damaged = aside.is_damaged(store)
                writer._take_pen(temporary_seconds=0.0 if ranks is None else TEMPORARY_SECONDS)
                if damaged:
                    writer.set_aside(())
                if writer.coordinator is not None:
                    writer.coordinator.admit()
                writer.checkpoints.room.reserve()
            except Exception as error:
                if writer.coordinator is not None:
                    writer.coordinator.refuse(error)
                raise
        except BaseException:
            lock.release()
            raise
        return writer

    @property
    def checkpoints(self) -> CheckpointWriter:
        """What writes the checkpoints of this process, with the pen in its hand.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        held = self._checkpoints
        if held is not None and held.in_doubt and self.coordinator is None:
            # Its record may land after its blobs were swept. In the next epoch it does not count.
            self._pen, self._checkpoints = held.pen, None
            self.lose_pen()
        return self._checkpoints or self._take_pen()

    def lend(self) -> Pen:
        """Give the pen away, for a `CheckpointWriter` in another process.

        Raises:
            StoreError: the pen was lost, and a new one cannot be had.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        if self._checkpoints is not None:
            self._pen, self._checkpoints = self._checkpoints.pen, None
        self._replace_lost()
        return self._pen

    def lose_pen(self) -> None:
        """Say that whoever has borrowed the pen died while it was writing.

        A store may still carry out what it was asked last: a commit, say, whose blobs are swept by then. So
        the next use of the pen takes a new epoch, in which that does not count.
        """
        self._lost = True

    def _replace_lost(self) -> None:
        if not self._lost:
            return
        owner, now = self._lock.owner, self._clock()
        former, token = self._pen.claim, self._token
        claim = self._small(
            lambda: fencing.succeed(self._store, former, token=token, owner=owner, job=self.job, time=now)
        )
        # In this order: should the start fail, no pen of the former epoch is good for anything any more.
        self._pen, self.epoch = replace(self._pen, claim=claim), claim.epoch
        first = self._small(lambda: fencing.start(self._store, claim, last=read_log(self._store).last))
        self._small(lambda: self._lock.publish(epoch=claim.epoch, now=now))
        self._pen = replace(self._pen, first=first)
        self._lost = False

    def _take_pen(self, *, temporary_seconds: float = TEMPORARY_SECONDS) -> CheckpointWriter:
        self._replace_lost()
        self._checkpoints = CheckpointWriter.open(
            self._store,
            self.job,
            self._pen,
            compression=self._compression,
            clock=self._clock,
            token=self._token,
            signing_key=self._signing_key,
            coordinator=self.coordinator,
            temporary_seconds=temporary_seconds,
        )
        return self._checkpoints

    def write(self, snapshot: Snapshot, meta: Meta) -> Commit:
        """Write a checkpoint; see `CheckpointWriter.write`."""
        self._check_process()
        return self.checkpoints.write(snapshot, meta)

    def set_aside(self, commits: Collection[Commit], *, time: float | None = None) -> None:
        """Keep these commits beside all others until a person prunes the run; see `aside`. No save builds on them.

        Raises:
            StoreError: it could not be put on record.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        held = self.checkpoints
        fencing.check(self._store, self._pen.claim)
        named = held.aside().union(commit.sequence for commit in commits)
        kept = [commit for commit in held.commits() if commit.sequence in named]
        now = self._clock() if time is None else time
        owner = self._lock.owner
        self._small(lambda: aside.set_aside(self._store, kept, job=self.job, owner=owner, time=now))
        self._pen, self._checkpoints = held.pen, None  # who saves next looks at the run anew

    def retain(self, plan: RetentionPlan) -> collect.GcPlan:
        """Delete what the plan does not keep, and leftovers; see `CheckpointWriter.retain`."""
        self._check_process()
        return self.checkpoints.retain(plan)

    def prune(self, plan: RetentionPlan | None = None) -> tuple[collect.GcPlan, Compacted]:
        """Delete what the plan does not keep, and all that is dead; see `CheckpointWriter.prune`."""
        self._check_process()
        return self.checkpoints.prune(plan)

    def sweep(self, *, temporary_seconds: float = TEMPORARY_SECONDS) -> collect.GcPlan:
        """Delete what no commit that counts needs; see `CheckpointWriter.sweep`."""
        self._check_process()
        return self.checkpoints.sweep(temporary_seconds=temporary_seconds)

    def chunks(self, base: Base) -> ChunkList:
        """Return the digests of the chunks of a saved array, also while the pen is lent.

        Raises:
            CorruptObject: its chunk list is missing or damaged.
        """
        if self._checkpoints is not None:
            return self._checkpoints.chunks(base)
        self._index.refresh()
        try:
            return ChunkLists(self._index).get(base.name, base.count)
        except CorruptObject as error:
            if error.digest:
                self._pen.suspect.add(error.digest)  # for whoever has the pen: it is written anew
            raise

    def mark_pending(self, step: Step, reason: str, *, segment: int = 0) -> None:
        """Record durably that a save of `step` was started.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        if not (isinstance(self._store, SupportsLocalHints) and self._store.is_local(layout.PENDING)):
            fencing.check(self._store, self._pen.claim)  # else training would wait for the network
        owner = self._lock.owner
        pending = Pending(
            job=self.job,
            **owner.as_owner(),
            time=self._clock(),
            step=step,
            segment=segment,
            reason=reason,
            epoch=self.epoch,
        )
        self._small(lambda: note(self._store, layout.PENDING, seal(pending)))

    def name_companion(self, companion: Process) -> None:
        """Record durably who has borrowed the pen. The next start waits for that process to end.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._pen.claim)
        now = self._clock()
        self._small(lambda: self._lock.publish(epoch=self.epoch, now=now, companion=companion))

    def write_birth(self, skeleton: Snapshot, *, segment: int = 0) -> Digest:
        """Write a birth document and return its name, for `Meta.birth` of every save that goes with it.

        It is kept as long as a commit names it, and until this writer is closed. Earlier ones stay
        what they are.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._pen.claim)
        name, data = birth.encode(skeleton, job=self.job, segment=segment)
        # Written again if it is there: a writer that was overtaken might be about to delete that one.
        self._small(lambda: self._store.put(layout.birth(name), data))
        self._pen.births.add(name)
        return name

    def copy_birth(self, name: Digest, data: bytes) -> None:
        """Write a birth document of another run as it is; see `write_birth`.

        Raises:
            CorruptObject: it is not the document of this name.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        birth.decode(data, name, key=layout.birth(name))
        if name in self._pen.births:
            return  # written by this very process: nobody is about to delete it
        fencing.check(self._store, self._pen.claim)
        self._small(lambda: self._store.put(layout.birth(name), data))
        self._pen.births.add(name)

    def copy_saves(self, records: Iterable[SaveRecord], *, known: Collection[SaveRecord]) -> int:
        """Write the records of another run's saves into this one, which holds the `known` ones; see `saves.carry`.

        Raises:
            StoreError: they could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._pen.claim)
        return saves.carry(records, self._store, known=known)

    def record_workers(self, workers: Iterable[Process]) -> None:
        """Record which processes this one has started, so that the next start can end those left behind.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._pen.claim)
        owner = self._lock.owner
        record = WorkersRecord(
            job=self.job,
            **owner.as_owner(),
            time=self._clock(),
            workers=[Worker(pid=worker.pid, process_start=worker.start) for worker in workers],
        )
        self._small(lambda: self._store.put(layout.WORKERS, seal(record)))

    def append_history(self, record: HistoryRecord) -> None:
        """Add a line to the run's history, with job and epoch filled in; in one step where the store can append.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._pen.claim)
        record = msgspec.structs.replace(record, job=self.job, epoch=self.epoch)
        self._small(lambda: append(self._store, layout.HISTORY, wire.encode_line(record)))

    def close(self) -> None:
        """Give the run back. Commits need no closing; a second call does nothing."""
        if not self._lock.is_elsewhere:
            with suppress(StoreError):  # nothing depends on it, and nobody can use it any more
                remove_settled(self._store)
        self._lock.release()

    def __enter__(self) -> RunWriter:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _small(self, action: Callable[[], T]) -> T:
        """Write a small record, if need be in the room of the ballast."""
        return spending(self._store, action)

    def _check_process(self) -> None:
        if self._lock.is_elsewhere:
            raise InternalError(
                "A forked child used its parent's writer.",
                hint="Only the process that opened a run writes to it.",
            )

"""Writes checkpoints of one run, one at a time.

Order of a save: packs, their indexes, documents, metadata, manifest, and then the create-only commit
record. Each is durable before the next begins, so a commit record never names anything that a power
loss can take away. Only after that the hint `latest.txt` and the removal of `pending.json`.

A save that fails leaves every earlier commit as it was, removes what it had written, and raises.
Before a commit is acknowledged the epochs are read once more: a process that was overtaken meanwhile
learns it there (`Fenced`) and not from a damaged run. From then on it neither writes nor deletes.

A blob that lies in the run already is not written again, if it may be relied on: it lies in a pack of
this very writer, or a commit that counts names it. A pack that somebody else has left may be deleted
at any moment by its writer.

Not promised: safety for several threads at once. The engine has one save in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from unbroken.errors import (
    AmbiguousCommit,
    CommitConflict,
    Fenced,
    InternalError,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
)
from unbroken.format import layout, pack, wire
from unbroken.format import manifest as manifests
from unbroken.format import meta as metas
from unbroken.format.buffers import Buffer, Content
from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.digest import digest_of
from unbroken.format.manifest import DocumentFormat, Manifest
from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.format.records import Commit, HistoryRecord, Pending, Worker, WorkersRecord
from unbroken.repo import birth, collect, fencing, names
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, References, all_blobs
from unbroken.repo.encoding import ComponentEncoder, packs_of
from unbroken.repo.lock import RunLock
from unbroken.repo.log import read_log
from unbroken.repo.pipeline import Pipeline, StoredBlob
from unbroken.repo.process import Process
from unbroken.repo.reader import Reader
from unbroken.repo.retention import RetentionPlan
from unbroken.repo.seal import seal
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore, SupportsLocalHints, SupportsSweep, append, put_all
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId

_CONFLICTS = 1000
TEMPORARY_SECONDS = 3600.0
"""While a run is being written, a temporary file may belong to another thread of this process."""


@dataclass(slots=True)
class _Attempt:
    """One save on its way: what it has written so far, and whether the commit may have happened."""

    write_id: WriteId
    directory: str
    written: list[str] = field(default_factory=list[str])
    packs: list[str] = field(default_factory=list[str])
    in_doubt: bool = False


@dataclass(slots=True)
class _Written:
    """What one save has put, filled in as its objects are consumed."""

    indexes: list[pack.PackIndex] = field(default_factory=list[pack.PackIndex])
    meta: Meta = field(init=False)
    manifest_digest: Digest = field(init=False)
    references: References = field(init=False)


class RunWriter:
    """The right to write to a run. Comes from `Repository.writer`; a context manager."""

    def __init__(
        self,
        store: ByteStore,
        job: str,
        index: BlobIndex,
        *,
        lock: RunLock,
        claim: fencing.Claim,
        first: Sequence,
        document_format: DocumentFormat,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
    ) -> None:
        self.job = job
        self.epoch = claim.epoch
        self._store = store
        self._index = index
        self._lock = lock
        self._claim = claim
        self._next = first
        self._format: DocumentFormat = document_format
        self._compression = compression
        self._clock = clock
        self._token = token
        self._signing_key = signing_key
        self._lists = ChunkLists(index)
        self._references: dict[Digest, References] = {}
        """By the digest of its manifest, what each commit that counts needs, as far as it was looked at."""
        self._held: set[Digest] = set()
        """All blobs that they need."""
        self._births: set[Digest] = set()
        self._starts: dict[Epoch, Sequence] = {}

    @classmethod
    def open(
        cls,
        store: ByteStore,
        job: str,
        index: BlobIndex,
        *,
        document_format: DocumentFormat,
        compression: Compression,
        clock: Callable[[], float],
        token: Callable[[], str],
        signing_key: Callable[[], bytes | None],
        owner: Process | None,
    ) -> RunWriter:
        """Take the run: lock, epoch, start; then sweep. See `Repository.writer`."""
        lock = RunLock.acquire(store, job=job, owner=owner)
        try:
            claim = fencing.claim(store, token=token, owner=lock.owner, job=job, time=clock())
            lock.publish(epoch=claim.epoch, now=clock())
            writer = cls(
                store,
                job,
                index,
                lock=lock,
                claim=claim,
                first=fencing.start(store, claim, last=read_log(store).last),
                document_format=document_format,
                compression=compression,
                clock=clock,
                token=token,
                signing_key=signing_key,
            )
            # Here nobody but a dead or a fenced process can have temporary files.
            writer.sweep(temporary_seconds=0.0)
        except BaseException:
            lock.release()
            raise
        return writer

    def write(self, snapshot: Snapshot, meta: Meta) -> Commit:
        """Write `snapshot` as a checkpoint and return its commit once it is durable and counts.

        What `meta` leaves empty is filled in: job, process, time, bytes, and from the snapshot the
        fidelity, counters and notes.

        Raises:
            StoreError: it could not be written; earlier commits are intact.
            Fenced: a newer process has taken the run over.
            AmbiguousCommit: the store cannot say whether the commit exists.
        """
        self._check_process()
        write_id = names.write_id(self._token(), self.epoch)
        attempt = _Attempt(write_id, layout.checkpoint(meta.step, write_id))
        try:
            commit = self._write(attempt, snapshot, meta)
        except Exception as error:
            self._discard(attempt, delete=not isinstance(error, Fenced))
            raise
        # The checkpoint exists now. Both that follow are hints which nobody trusts: to report the save
        # as failed because of them would be wrong, and what is wrong shows at the next save.
        with suppress(StoreError, Fenced):
            fencing.check(self._store, self._claim)
            self._store.put(layout.LATEST, f"{commit.directory}\n".encode())
            fencing.check(self._store, self._claim)
            self._store.delete(layout.PENDING)
        return commit

    def mark_pending(self, step: Step, reason: str, *, segment: int = 0) -> None:
        """Record durably that a save of `step` was started.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        if not (isinstance(self._store, SupportsLocalHints) and self._store.is_local(layout.PENDING)):
            fencing.check(self._store, self._claim)  # else training would wait for the network
        owner = self._lock.owner
        pending = Pending(
            job=self.job,
            pid=owner.pid,
            process_start=owner.start,
            host=owner.host,
            boot_id=owner.boot_id,
            time=self._clock(),
            step=step,
            segment=segment,
            reason=reason,
            epoch=self.epoch,
        )
        self._store.put(layout.PENDING, seal(pending))

    def write_birth(self, skeleton: Snapshot, *, segment: int = 0) -> Digest:
        """Write a birth document and return its name, for `Meta.birth` of every save that goes with it.

        It is kept as long as a commit names it, and until this writer is closed. Earlier ones stay
        what they are.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._claim)
        name, data = birth.encode(skeleton, job=self.job, segment=segment)
        # Written again if it is there: a writer that was overtaken might be about to delete that one.
        self._store.put(layout.birth(name), data)
        self._births.add(name)
        return name

    def record_workers(self, workers: Iterable[Process]) -> None:
        """Record which processes this one has started, so that the next start can end those left behind.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._claim)
        owner = self._lock.owner
        record = WorkersRecord(
            job=self.job,
            pid=owner.pid,
            process_start=owner.start,
            host=owner.host,
            boot_id=owner.boot_id,
            time=self._clock(),
            workers=[Worker(pid=worker.pid, process_start=worker.start) for worker in workers],
        )
        self._store.put(layout.WORKERS, seal(record))

    def append_history(self, record: HistoryRecord) -> None:
        """Add a line to the run's history, with job and epoch filled in; in one step where the store can append.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        self._check_process()
        fencing.check(self._store, self._claim)
        record = msgspec.structs.replace(record, job=self.job, epoch=self.epoch)
        append(self._store, layout.HISTORY, wire.encode_line(record))

    def retain(self, plan: RetentionPlan) -> collect.GcPlan:
        """Delete what the plan does not keep, and leftovers. Commits newer than the plan stay."""
        self._check_process()
        dropped = {commit.sequence for commit in plan.dropped}
        return self._collect(dropped, keep_last=plan.keep_last)

    def sweep(self, *, temporary_seconds: float = TEMPORARY_SECONDS) -> collect.GcPlan:
        """Delete what no commit that counts needs: leftovers of failed saves, and of writers that are over.

        Temporary files of the store go when nobody has touched them for so many seconds.
        """
        self._check_process()
        swept = self._collect(frozenset(), keep_last=None)
        if isinstance(self._store, SupportsSweep):
            fencing.check(self._store, self._claim)
            self._store.sweep(older_than=temporary_seconds)
        return swept

    def close(self) -> None:
        """Give the run back. Commits need no closing; a second call does nothing."""
        self._lock.release()

    def __enter__(self) -> RunWriter:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, attempt: _Attempt, snapshot: Snapshot, meta: Meta) -> Commit:
        fencing.check(self._store, self._claim)
        with Pipeline(self._compression, self._must_write) as pipeline:
            stored: set[Digest] = set()
            encoders = [
                ComponentEncoder(component, self._format, self._lists, pipeline, stored)
                for component in snapshot.components.values()
            ]
            written = _Written()
            put_all(self._store, self._objects(attempt, encoders, self._complete(meta, snapshot), written))
        commit = Commit(
            sequence=self._next,
            step=written.meta.step,
            segment=written.meta.segment,
            epoch=self.epoch,
            write_id=attempt.write_id,
            directory=attempt.directory,
            manifest_digest=written.manifest_digest,
            time=written.meta.time,
            good=written.meta.good,
            position=written.meta.position,
            metrics=written.meta.metrics,
            birth=written.meta.birth,
        )
        commit = self._commit(attempt, commit)
        for index in written.indexes:
            self._index.add(index)
        references = written.references
        needed = all_blobs([references])
        self._index.suspect.difference_update(stored)  # those were written anew
        self._references[commit.manifest_digest] = references
        self._held |= needed
        return commit

    def _objects(
        self, attempt: _Attempt, encoders: list[ComponentEncoder], meta: Meta, written: _Written
    ) -> Iterator[tuple[str, Content]]:
        """Yield what to put, in this order: each pack before its index, and the manifest last."""
        for blobs in packs_of(encoders):
            name = names.write_id(self._token(), self.epoch)
            attempt.written += [layout.pack(name), layout.index(name)]
            attempt.packs.append(name)
            writer = pack.PackWriter(name)
            yield layout.pack(name), writer.stream(map(_entry, blobs))
            written.indexes.append(writer.index())
            yield layout.index(name), pack.encode_index(written.indexes[-1])
        encoded = [encoder.finish() for encoder in encoders]
        meta_data = metas.encode(meta)
        manifest = Manifest(
            job=self.job,
            step=meta.step,
            epoch=self.epoch,
            write_id=attempt.write_id,
            meta=digest_of(meta_data),
            documents={part.file_name: part.entry for part in encoded},
            blobs={digest: size for part in encoded for digest, size in part.sizes.items()},
            opaque=sorted(place for part in encoded for place in part.opaque),
        )
        if manifest.opaque and (key := self._signing_key()) is not None:
            manifest = manifests.signed(manifest, key)
        manifest_data = manifests.encode(manifest)
        files = {part.file_name: part.data for part in encoded}
        for file, data in {**files, layout.META: meta_data, layout.MANIFEST: manifest_data}.items():
            attempt.written.append(f"{attempt.directory}/{file}")
            yield attempt.written[-1], data
        written.meta = meta
        written.manifest_digest = digest_of(manifest_data)
        written.references = References(
            frozenset(Digest(digest) for digest in manifest.blobs),
            tuple(chunks for part in encoded for chunks in part.lists),
        )

    def _must_write(self, digest: Digest) -> bool:
        """Whether a save must write this blob: it lies nowhere where it is sure to stay, or is damaged."""
        if digest in self._index.suspect:
            return True
        packs = {place.pack for place in self._index.places(digest)} - self._index.condemned
        if any(names.epoch_of(pack) == self.epoch for pack in packs):
            return False
        return not packs or digest not in self._held

    def _commit(self, attempt: _Attempt, commit: Commit) -> Commit:
        for _ in range(_CONFLICTS):
            fencing.check(self._store, self._claim)
            commit = msgspec.structs.replace(commit, sequence=self._next)
            self._next = Sequence(self._next + 1)
            attempt.in_doubt = True
            if self._publish(attempt, layout.commit(commit.sequence), seal(commit)):
                # Before anybody is told: who claimed the run while the record was being written may
                # not have seen it, and will then not count it.
                fencing.check(self._store, self._claim)
                return commit
            attempt.in_doubt = False
        raise CommitConflict(
            f"No free sequence number was found up to {self._next}.",
            key=layout.commit(commit.sequence),
            epoch=self.epoch,
        )

    def _publish(self, attempt: _Attempt, key: str, data: bytes) -> bool:
        """Write the commit record; return whether this number is ours."""
        try:
            return fencing.create_only(self._store, key, data)
        except StoreError as error:
            try:
                self._store.size(key)
            except ObjectMissing:
                # Nothing is there. A store that is full or denies us will also not write it later.
                attempt.in_doubt = not isinstance(error, (StoreFull, StoreDenied))
                raise error from None
            except StoreError:
                pass
            raise AmbiguousCommit(
                f"The store failed while {key} was written and does not say whether it exists.",
                key=key,
                epoch=self.epoch,
            ) from error

    def _discard(self, attempt: _Attempt, *, delete: bool) -> None:
        """Remove what a failed save has written, so that a full disk is not kept full by it."""
        self._index.condemn(attempt.packs)
        if attempt.in_doubt or not delete:
            return  # the commit may exist, or the run is another's; the next sweep will know
        for key in reversed(attempt.written):
            try:
                fencing.check(self._store, self._claim)
                self._store.delete(key)
            except (StoreError, Fenced):
                # The save's own error is on its way to the caller and says more; the next sweep of
                # this or of a later process takes what is left.
                return

    def _collect(self, dropped: Collection[Sequence], *, keep_last: int | None) -> collect.GcPlan:
        log = read_log(self._store, starts=self._starts)
        inventory = collect.take_inventory(self._store, log, self._index, self._references_of)
        plan = collect.plan_gc(
            inventory, epoch=self.epoch, drop=dropped, keep_last=keep_last, births=self._births
        )
        # Before the first deletion: should one fail, no later save may build on what is half gone.
        self._references = {
            commit.manifest_digest: self._references[commit.manifest_digest]
            for commit in log.commits
            if commit.manifest_digest in self._references
            and layout.commit(commit.sequence) not in plan.commits
        }
        self._held = all_blobs(self._references.values())
        self._lists.keep({c.name for found in self._references.values() for c in found.lists})
        self._index.condemn(_packs_of(plan.packs))
        if plan.low_water is not None:
            self._next = max(self._next, plan.low_water)
        collect.execute(self._store, plan, claim=self._claim)
        self._index.refresh()
        return plan

    def _references_of(self, commit: Commit) -> References:
        known = self._references.get(commit.manifest_digest)
        if known is None:
            known = Reader(self._store, self._index, commit).references(self._lists)
            self._references[commit.manifest_digest] = known
        return known

    def _complete(self, meta: Meta, snapshot: Snapshot) -> Meta:
        owner = self._lock.owner
        fidelity = {
            name: ComponentFidelity(promise.fidelity, promise.reason)
            for name, promise in snapshot.promises.items()
        }
        return msgspec.structs.replace(
            meta,
            job=self.job,
            pid=meta.pid or owner.pid,
            process_start=meta.process_start or owner.start,
            host=meta.host or owner.host,
            boot_id=meta.boot_id or owner.boot_id,
            time=meta.time or self._clock(),
            bytes=meta.bytes or sum(component.nbytes for component in snapshot.components.values()),
            fidelity=meta.fidelity or fidelity,
            counters=meta.counters or snapshot.counters,
            notes=meta.notes or [f"{note.kind}: {note.place}: {note.detail}" for note in snapshot.notes],
        )

    def _check_process(self) -> None:
        if self._lock.is_elsewhere:
            raise InternalError(
                "A forked child used its parent's writer.",
                hint="Only the process that opened a run writes to it.",
            )


def _entry(blob: StoredBlob) -> tuple[Digest, int, BlobCodec, Buffer]:
    return blob.digest, blob.size, blob.codec, blob.content


def _packs_of(keys: Iterable[str]) -> set[str]:
    return {name for key in keys if (name := layout.pack_name(key)) is not None}

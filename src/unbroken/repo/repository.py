"""A run's checkpoints: which exist, what they hold, and whether they are whole.

Everything that is read is checked against the digest of what vouches for it: the commit record (which
carries its own check) for the manifest, the manifest for metadata, documents and blobs. Reading never
writes and needs no lock; a checkpoint that is collected meanwhile shows as missing objects, and is then `gone`.
Where blobs are missed while packs come and go, they are looked for again: a compaction moves them.

Not promised: that the state fits anything. That is the planner's question.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection

from unbroken.errors import (
    ConfigError,
    CorruptObject,
    ObjectBlocked,
    ObjectMissing,
    StoreUnavailable,
    UnsupportedFormat,
)
from unbroken.format import layout, wire
from unbroken.format.compression import Compression
from unbroken.format.document import BlobRef, Document
from unbroken.format.manifest import DocumentFormat, Manifest
from unbroken.format.meta import Meta
from unbroken.format.records import Commit, FormatRecord, HistoryRecord, Pending, decode_format
from unbroken.format.saves import SaveRecord
from unbroken.repo import birth, fencing, keys, names, saves
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.coordinator import Ranks
from unbroken.repo.fault import ObjectFault
from unbroken.repo.follower import Follower, join
from unbroken.repo.lock import PATIENCE, await_companion
from unbroken.repo.log import CommitLog, is_gone, read_log
from unbroken.repo.pending import read_pending
from unbroken.repo.process import Process, current
from unbroken.repo.reader import Reader
from unbroken.repo.roots import DirectoryRoot, root_of
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.seal import seal, unseal_json
from unbroken.repo.settled import ATTEMPTS, packs_changed, settled
from unbroken.repo.vouching import Vouching, vouching
from unbroken.repo.workers import Workers, read_workers
from unbroken.state.snapshot import Bytes, Snapshot
from unbroken.store.base import ByteStore, SupportsProbe, taken
from unbroken.types import Digest, Epoch, Sequence


class Repository:
    """The checkpoints of one run. Use `open`; the constructor takes any store, rooted at the run.

    For one thread at a time; the writer that it gives may work in another.
    """

    def __init__(self, store: ByteStore, job: str) -> None:
        self.store = store
        self.job = names.check_job(job)
        self._index = BlobIndex(store)
        self._starts: dict[Epoch, Sequence] = {}
        self._format: ObjectFault | None = None

    @classmethod
    def open(cls, root: str | os.PathLike[str], job: str, *, create: bool = False) -> Repository:
        """Open the run `job` below `root`, a directory or a URL (`roots.py`).

        Raises:
            ConfigError: the name or the root cannot be used, or there is no such run and `create` is False.
            UnsupportedFormat: it was written by a newer version, or needs a feature that this one lacks.
        """
        names.check_job(job)
        place = root_of(root)
        if create:
            place.check_new(job)
        try:
            return cls.over(place.store(job), job, create=create, where=place.text)
        except StoreUnavailable as error:
            if not isinstance(place, DirectoryRoot) or place.path.exists():
                raise
            # Not in passing, as the store must assume: such a file system (/proc) makes no directories.
            raise ConfigError(
                f"{place.path} cannot be made: {error.message}", hint="Choose another directory."
            ) from error

    @classmethod
    def over(
        cls, store: ByteStore, job: str, *, create: bool = False, where: str = "this store"
    ) -> Repository:
        """Open the run in a store that is rooted at the run's own directory. `where` is what a person calls the
        place that holds the run."""
        repository = cls(store, job)
        try:
            _check_format(repository._format_record(create=create, where=where))
        except CorruptObject as error:
            # It says the same for every run of this version, so commits that can be read say it as well:
            # one bit here is no reason to lose them. A run without any was cut off at its first start.
            held = taken(store, layout.COMMITS)
            if held and not repository.commits():
                raise
            if create:
                store.put(layout.FORMAT, seal(FormatRecord()))
            elif not held:
                raise
            if held:  # told also where it was mended
                repository._format = ObjectFault("", layout.FORMAT, "", error.message)
        return repository

    def _format_record(self, *, create: bool, where: str) -> bytes:
        try:
            return self.store.get(layout.FORMAT)
        except ObjectMissing:
            if not create:
                raise ConfigError(
                    f"There is no run {self.job!r} in {where}.", hint="Check the root and the name."
                ) from None
        self.store.put_if_absent(layout.FORMAT, seal(FormatRecord()))
        return self.store.get(layout.FORMAT)

    def commits(self) -> list[Commit]:
        """Return the commits that count, newest first."""
        return list(self._log().commits)

    def stale(self) -> list[Commit]:
        """Return commits of processes that had lost the run by then. They do not count."""
        return list(self._log().stale)

    def gone(self, commit: Commit) -> bool:
        """Whether a commit that was listed counts no more; see `log.is_gone`."""
        return is_gone(self.store, commit, starts=self._starts)

    def broken(self) -> list[ObjectFault]:
        """Return the commit records, epoch starts and indexes that cannot be read."""
        self._index.refresh()
        format_ = [] if self._format is None else [self._format]
        indexes = [*self._index.damaged.values(), *self._index.rebuilt.values()]
        return [*format_, *self._log().broken, *indexes]

    def _log(self) -> CommitLog:
        return read_log(self.store, starts=self._starts)

    def manifest(self, commit: Commit) -> Manifest:
        """Return the manifest of a commit; `CorruptObject` if it is not the one that was committed."""
        return Reader(self.store, self._index, commit).manifest

    def meta(self, commit: Commit) -> Meta:
        """Return the metadata of a commit."""
        return Reader(self.store, self._index, commit).meta

    def document(self, commit: Commit, component: str) -> Document:
        """Return the document of one component: its tree, and which blobs it names. No blob is read.

        Raises:
            CorruptObject: it is damaged or missing.
            ConfigError: the checkpoint has no such component.
        """
        return Reader(self.store, self._index, commit).document(component)

    def load(self, commit: Commit, components: Collection[str] | None = None) -> Snapshot:
        """Return the state of a commit, or only some components of it. Every digest is checked.

        Pickled parts are returned as bytes; nothing in a checkpoint is executed here.

        Raises:
            CorruptObject: an object is damaged or missing.
            ConfigError: the checkpoint has no component of a name that was asked for.
        """
        return settled(self._index, lambda: Reader(self.store, self._index, commit).load(components))

    def contents(self, commit: Commit, refs: Collection[BlobRef]) -> list[Bytes]:
        """Return the bytes of arrays that documents of a commit name. Every digest is checked.

        Raises:
            CorruptObject: a chunk is damaged or missing.
        """
        return settled(self._index, lambda: Reader(self.store, self._index, commit).contents(refs))

    def verify(
        self, commit: Commit, components: Collection[str] | None = None, *, births: bool = True
    ) -> list[ObjectFault]:
        """Read every object of a commit, or of some of its components, and return what is wrong; an empty list if
        nothing is. What a commit that is `gone` by then lacks is no damage. A start goes on without the birth
        documents: `births=False` leaves them out."""
        for _ in range(ATTEMPTS - 1):
            faults = Reader(self.store, self._index, commit).verify(components, births=births)
            if not faults or not packs_changed(self._index):
                return faults
        return Reader(self.store, self._index, commit).verify(components, births=births)

    def signature_valid(self, commit: Commit, *, key: bytes | None = None) -> bool | None:
        """Whether the checkpoint was written by a holder of our key.

        None if it has no pickled parts and therefore needs no signature; `load` makes sure that none
        are hidden. `key` defaults to the user's, those that were retired included; without any key no
        signature is valid.
        """
        held = keys.held_keys() if key is None else [keys.HeldKey(key, "")]
        found = vouching(self.manifest(commit), held)
        return None if found is Vouching.NEEDLESS else found.is_ours

    def birth(self, commit: Commit) -> Snapshot | None:
        """Return the state tree that the settings in `commit` were born with; None if it names none.

        Raises:
            CorruptObject: it is damaged or missing.
        """
        return self.birth_named(Digest(commit.birth)) if commit.birth else None

    def birth_named(self, name: Digest) -> Snapshot:
        """Return the birth document of this name: a state tree without array contents.

        Raises:
            CorruptObject: it is damaged or missing.
        """
        return birth.read(self.store, name)

    def pending(self) -> Pending | None:
        """Return the record of a save that was started and not finished, or None.

        Raises:
            CorruptObject: there is one that cannot be read.
            UnsupportedFormat: it was written by a newer version.
        """
        return read_pending(self.store)

    def workers(self) -> Workers | None:
        """Return which processes the last trainer had started; None if there is no record that can be read."""
        return read_workers(self.store)

    def history(self) -> list[HistoryRecord]:
        """Return what is known of the run's starts and ends, oldest first.

        A report for people: lines that cannot be read are left out.
        """
        try:
            lines = self.store.get(layout.HISTORY).split(b"\n")
        except (ObjectMissing, ObjectBlocked):
            return []
        records: list[HistoryRecord] = []
        for line in lines:
            try:
                records.append(wire.decode(line, HistoryRecord, key=layout.HISTORY))
            except (CorruptObject, UnsupportedFormat):
                continue
        return records

    def saves(self) -> list[SaveRecord]:
        """Return what is known of every save of the run, oldest first, those included whose checkpoints are gone.

        A report for people. What cannot be read is left out, unless the checkpoint is there to say it; of a long run
        the older records are thinned out (docs/format.md). Fields are None where nobody knows: `durable` where only
        the checkpoint is left, more of them where that is damaged. A `sequence` of 0 is of the run that this one was
        copied from.

        Raises:
            StoreError: the store does not answer.
        """
        log = self._log()
        epochs = fencing.read_epochs(self.store, known=self._starts)
        return saves.read(self.store, self._index, log.commits, epochs)

    def writer(
        self,
        *,
        document_format: DocumentFormat = "json",
        compression: Compression | None = None,
        clock: Callable[[], float] = time.time,
        token: Callable[[], str] = lambda: secrets.token_hex(names.TOKEN_DIGITS // 2),
        signing_key: Callable[[], bytes | None] = lambda: keys.signing_key(create=True),
        owner: Process | None = None,
        patience: float = PATIENCE,
        ranks: Ranks | None = None,
    ) -> RunWriter:
        """Take the run for writing: the lock, then an epoch of its own. Leftovers of the past are swept.

        Close the writer when done; a process that ends without that blocks nobody. Waits first, at most
        `patience` seconds, for a checkpoint that the companion of a killed process is about to commit.

        Raises:
            RunBusy: another live process writes to the run.
            ConfigError: the store does not keep the promises that commits rest on.
        """
        if isinstance(self.store, SupportsProbe):
            self.store.probe()
        return RunWriter.open(
            self.store,
            self.job,
            # The index is its own, since it works in a thread of its own; what was found damaged here it
            # must know.
            suspect=self._index.suspect,
            document_format=document_format,
            compression=compression or Compression(),
            clock=clock,
            token=token,
            signing_key=signing_key,
            owner=owner,
            patience=patience,
            ranks=ranks,
        )

    def follow(
        self,
        rank: int,
        ranks: Ranks,
        *,
        owner: Process | None = None,
        document_format: DocumentFormat = "json",
        compression: Compression | None = None,
        signing_key: Callable[[], bytes | None] = lambda: keys.signing_key(create=True),
    ) -> Follower:
        """Take part as another rank than the first in what rank 0 writes; see `join`."""
        return join(
            self.store,
            self.job,
            rank=rank,
            about=ranks,
            owner=owner or current(),
            document_format=document_format,
            compression=compression,
            signing_key=signing_key,
        )

    def await_companion(self, *, patience: float = PATIENCE) -> Process | None:
        """Wait for the checkpoint that the companion of a killed process is about to commit.

        Returns the companion if it did not end in time. Who takes the run then takes it from it.
        """
        return await_companion(self.store, patience=patience)


def jobs(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the runs below `root`, sorted."""
    return root_of(root).jobs()


def _check_format(data: bytes) -> None:
    unseal_json(data, key=layout.FORMAT)
    decode_format(data, key=layout.FORMAT)

"""The records of a run's saves, which outlive their checkpoints: read for people, written beside a save.

Each epoch has an object of its own, to which its writer alone adds lines. On a disk a line is appended at each save, and
no wait for the disk is spent on it. A bucket cannot append, so the object is put anew, but only when a checkpoint
goes of which no line is stored yet: at most one request in as many saves as checkpoints are kept. Until then what lies
beside the checkpoint says the same, and a reader fills it in.

Invariants: a record is written when its commit exists, and no save fails for one; what cannot be read is left out; the
records of epochs that are over are gathered, and thinned out, so that there are few objects of a bounded size.

Not promised: that the machine's end leaves the newest lines; how long writing took (`durable`) where only what lies
beside a checkpoint is left. Nothing is decided by any of this.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, StoreError, UnsupportedFormat
from unbroken.format import saves
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.format.saves import SaveRecord
from unbroken.repo import fencing
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.fencing import Epochs
from unbroken.repo.reader import Reader
from unbroken.repo.seal import seal_line, unseal
from unbroken.repo.settled import ATTEMPTS
from unbroken.store.base import ByteStore, SupportsAppend, SupportsLocalPath, append

LONGEST = 32 * 2**20
"""Bytes of an object that are read, its newest ones: more than there can be of `saves.MOST` records."""
MOST_OBJECTS = 8
"""When so many epochs have left records, the next writer gathers them in its own."""


class SaveRecordWarning(UserWarning):
    """The record of a save could not be written. Every checkpoint is as it should be; curves may have gaps."""

    @classmethod
    def of(cls, problem: str) -> SaveRecordWarning:
        """Return the warning for one reason."""
        return cls(f"Of a save no record is kept, every checkpoint is as it should be: {problem}")


class SaveLog:
    """Adds the records of one writer, under its claim."""

    def __init__(self, store: ByteStore, claim: fencing.Claim, index: BlobIndex) -> None:
        self._store = store
        self._claim = claim
        self._index = index
        self._key = saves.saves(claim.epoch)
        # Elsewhere a line costs a request, and a training that saves often would pay for what it can do without.
        self._appends = isinstance(store, SupportsAppend) and isinstance(store, SupportsLocalPath)
        self._newest: tuple[Commit, Meta] | None = None
        self._looked = False
        self._mine: dict[int, bytes] = {}
        self._others: dict[int, bytes] = {}
        self._over: list[str] = []
        """The objects of epochs that are over."""
        self._waiting: dict[int, bytes] = {}

    def saved(self, commit: Commit, meta: Meta) -> None:
        """Remember the newest checkpoint, until `add`."""
        self._newest = commit, meta

    def add(
        self, commits: Iterable[Commit], *, going: Collection[Commit], durable: float | None = None
    ) -> str:
        """Add the record of the newest checkpoint; `commits` are all that there are, and `going` are about to go.

        Returns what went wrong with the store, an empty string if nothing did.

        Raises:
            Fenced: a newer process has taken the run over.
        """
        newest, self._newest = self._newest, None
        try:
            if newest is not None:
                self._await(saves.of_checkpoint(*newest, durable=durable))
            self._look(commits)
            ends = newest is not None and newest[0].position == "end"
            if self._waiting and (self._appends or ends or any(c.sequence in self._waiting for c in going)):
                self._write()
        except (StoreError, CorruptObject, UnsupportedFormat) as error:
            return error.message
        except MemoryError:
            return "there is not enough memory for it"
        return ""

    def warn(self, commits: Iterable[Commit], *, going: Collection[Commit]) -> None:
        """Have a line of each checkpoint that is about to go, and warn where that cannot be."""
        problem = self.add(commits, going=going)
        if problem:
            warnings.warn(SaveRecordWarning.of(problem), stacklevel=3)

    def _await(self, record: SaveRecord) -> None:
        self._waiting[record.sequence] = seal_line(record)
        if len(self._waiting) > saves.MOST:  # nothing could be written for long
            self._waiting = _thinned(self._waiting)

    def _look(self, commits: Iterable[Commit]) -> None:
        """Find out, once, what is on record, and what of the checkpoints that are there is not."""
        if self._looked:
            return
        # Nothing is remembered before all is read: what fails in the middle is done again from its beginning.
        mine: dict[int, bytes] = {}
        others: dict[int, bytes] = {}
        over: list[str] = []
        for key, records in _listed(self._store).items():
            epoch = saves.saves_epoch(key)
            lines = {record.sequence: seal_line(record) for record in records}
            if epoch == self._claim.epoch:
                mine.update(lines)
            elif epoch is not None and saves.ELSEWHERE < epoch < self._claim.epoch:
                others.update(lines)
                over.append(key)
        missing = [
            saves.of_checkpoint(commit, _meta(self._store, self._index, commit))
            for commit in commits
            if not any(commit.sequence in known for known in (mine, others, self._waiting))
        ]
        self._mine, self._others, self._over, self._looked = mine, others, over, True
        for record in missing:
            self._await(record)

    def _write(self) -> None:
        mine = dict(sorted({**self._mine, **self._waiting}.items()))
        if len(mine) + len(self._others) > saves.MOST or len(self._over) >= MOST_OBJECTS:
            mine = _thinned({**self._others, **mine})
            self._put(mine)
            # Deleted after they lie in another: until then they are there twice, and count once.
            for key in self._over:
                fencing.check(self._store, self._claim)
                self._store.delete(key)
            self._over, self._others = [], {}
        elif self._appends:
            append(self._store, self._key, b"".join(self._waiting.values()), durable=False)
        else:
            self._put(mine)
        self._mine, self._waiting = mine, {}

    def _put(self, lines: Mapping[int, bytes]) -> None:
        fencing.check(self._store, self._claim)
        self._store.put(self._key, b"".join(lines.values()))


def read(store: ByteStore, index: BlobIndex, commits: Collection[Commit], epochs: Epochs) -> list[SaveRecord]:
    """Return the records of a run, oldest first. `commits` are those that count.

    What was saved by the run that this one was copied from stands where it belongs, before all that came after.
    """
    own: dict[int, SaveRecord] = {}
    foreign: list[SaveRecord] = []
    for records in _listed(store).values():
        for record in records:
            if record.sequence == 0:
                foreign.append(record)
            elif epochs.hidden_by(record, commits) is None:
                own[record.sequence] = record
    for commit in commits:
        known = own.get(commit.sequence)
        if known is None or saves.moment(known) != saves.moment(commit):
            own[commit.sequence] = saves.of_checkpoint(commit, _meta(store, index, commit))
    return _merged(foreign, [own[sequence] for sequence in sorted(own)])


def carry(records: Iterable[SaveRecord], target: ByteStore, *, known: Collection[SaveRecord]) -> int:
    """Write the records of a run into one that its checkpoints are copied to, in the place of those of an earlier copy.

    `known` are those of the target. Returns how many were written; 0: it has them all. For whoever has claimed the
    target.

    Raises:
        StoreError: they could not be written.
    """
    there = {saves.moment(record) for record in known}
    brought = list(records)
    if all(saves.moment(record) in there for record in brought):
        return 0
    own = {saves.moment(record) for record in known if record.sequence and record.durable is not None}
    brought = [record for record in brought if saves.moment(record) not in own]
    stays = saves.kept([record.sequence for record in brought])
    lines = [
        seal_line(msgspec.structs.replace(record, sequence=0))
        for place, record in enumerate(brought)
        if place in stays
    ]
    target.put(saves.saves(saves.ELSEWHERE), b"".join(lines))
    return len(lines)


def _merged(foreign: Iterable[SaveRecord], own: list[SaveRecord]) -> list[SaveRecord]:
    """Put the records of an earlier run before those of this one; of what both have, one, where the earlier has it."""
    by_moment = {saves.moment(record): record for record in own}
    first: dict[tuple[object, ...], SaveRecord] = {}
    for record in foreign:
        moment = saves.moment(record)
        copied = by_moment.get(moment)
        first[moment] = (
            record
            if copied is None
            else msgspec.structs.replace(record, sequence=copied.sequence, epoch=copied.epoch)
        )
    return [*first.values(), *(record for record in own if saves.moment(record) not in first)]


def _thinned(lines: Mapping[int, bytes]) -> dict[int, bytes]:
    numbers = sorted(lines)
    stays = saves.kept(numbers)
    return {number: lines[number] for place, number in enumerate(numbers) if place in stays}


def _meta(store: ByteStore, index: BlobIndex, commit: Commit) -> Meta | None:
    with suppress(CorruptObject, ObjectMissing, UnsupportedFormat):
        return Reader(store, index, commit).meta
    return None


def _listed(store: ByteStore) -> dict[str, list[SaveRecord]]:
    """Return, by key, what can be read of all objects.

    A writer that gathers the objects of others deletes them once it has written its own. So where one was listed and is
    gone, its lines stand in another, which only a new listing shows.
    """
    found: dict[str, list[SaveRecord]] = {}
    before: set[str] = set()
    for _ in range(ATTEMPTS):
        keys = {key for key in store.list(saves.SAVES) if saves.saves_epoch(key) is not None}
        gone = False
        for key in sorted(keys):
            try:
                found[key] = _records(store, key)
            except ObjectMissing:
                gone = True
        if not gone or keys == before:
            break
        before = keys
    return found


def _records(store: ByteStore, key: str) -> list[SaveRecord]:
    """Return what can be read of an object, in its order.

    Raises:
        ObjectMissing: it is gone.
        StoreError: the store failed.
    """
    try:
        size = store.size(key)
        # No writer makes it so long. What has become of it, by damage, must not cost a training its memory.
        data = store.get(key) if size <= LONGEST else store.get_range(key, size - LONGEST, LONGEST)
        lines = data.split(b"\n")
    except ObjectBlocked:
        return []
    found: list[SaveRecord] = []
    for line in filter(None, lines):
        try:
            found.append(unseal(line + b"\n", SaveRecord, key=key))
        except (CorruptObject, UnsupportedFormat):
            continue
    return found

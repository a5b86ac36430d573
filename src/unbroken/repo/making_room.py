"""What the writer of a run can say and do about the room on its disk: how much a save takes, and what a plan would give.

Nothing is decided here; `pressure` plans and the engine carries out.

Invariant: what a snapshot builds on is found, so that nobody deletes it before the snapshot is written.

Not promised: numbers to the byte. A file system takes whole blocks, and has more to keep than files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.buffers import Content, pieces
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo import ballast, collect, compaction, fencing
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import References
from unbroken.repo.log import CommitLog
from unbroken.repo.reader import Reader
from unbroken.repo.retention import RetentionPlan
from unbroken.state.snapshot import Rows, Snapshot
from unbroken.store.base import ByteStore
from unbroken.types import Sequence

BLOCK = 4096
"""Bytes of which a file takes whole multiples: no common file system has larger ones."""

RECORDS = 8 * BLOCK
"""Bytes of what comes beside a checkpoint: its commit, the record of its save, hints, new directories. A start writes less."""


class Saves(Protocol):
    """What looking after the room takes of the writer of a run."""

    @property
    def store(self) -> ByteStore: ...

    @property
    def claim(self) -> fencing.Claim: ...

    @property
    def index(self) -> BlobIndex: ...

    @property
    def size(self) -> int:
        """How many ranks write each checkpoint."""
        ...

    @property
    def saved_bytes(self) -> int:
        """Of the last save, in packs."""
        ...

    def log(self) -> CommitLog: ...

    def references_of(self, commit: Commit) -> References: ...

    def rehearse(self, snapshot: Snapshot, meta: Meta) -> Iterator[Content]:
        """Carry a save out but for the writing, and yield what it would put; of several ranks, as far as this one's part."""
        ...


class Room:
    """The room on the disk of one run, as its writer looks after it."""

    def __init__(self, writer: Saves) -> None:
        self._writer = writer

    @property
    def is_alone(self) -> bool:
        """Whether no other rank takes part: only then may a save be tried again."""
        return self._writer.size == 1

    def free_bytes(self) -> int | None:
        """Return how many bytes the disk has room for; None where nobody can tell."""
        return ballast.free_bytes(self._writer.store)

    def lighten(self) -> None:
        """Have room for what is put on record before anything is deleted."""
        ballast.lighten(self._writer.store)

    def reserve(self) -> None:
        """Have the ballast there again, as far as there is room; see `ballast`."""
        ballast.reserve(self._writer.store, seed=self._writer.claim.write_id)

    def builds_on(self, snapshot: Snapshot) -> frozenset[Sequence]:
        """Return the commits without which `snapshot` cannot be written: it holds only what has changed since."""
        bases = {
            blob.base.name
            for component in snapshot.components.values()
            for blob in component.blobs
            if isinstance(blob, Rows) and blob.base is not None
        }
        found: set[Sequence] = set()
        for commit in self._writer.log().commits if bases else ():
            with suppress(CorruptObject, UnsupportedFormat, ObjectMissing):
                if not bases.isdisjoint(chunks.name for chunks in self._writer.references_of(commit).lists):
                    found.add(commit.sequence)
        return frozenset(found)

    def is_whole(self, commit: Commit) -> bool:
        """Read every byte of a checkpoint, and return whether all are as they were written."""
        self._writer.index.refresh()
        return not Reader(self._writer.store, self._writer.index, commit).verify(births=False)

    def taken_by(self, snapshot: Snapshot, meta: Meta) -> int:
        """Return how many bytes a save of `snapshot` takes on the disk: it is carried out, but for the writing.

        Of several ranks each is taken to write as much as this one.
        """
        objects = self._writer.rehearse(snapshot, meta)
        size = sum(_blocks(sum(memoryview(piece).nbytes for piece in pieces(data))) for data in objects)
        return size * self._writer.size + RECORDS + ballast.lacking(self._writer.store)

    def weigher(self) -> Callable[[RetentionPlan], int]:
        """Return what says how many bytes a plan gives, of what the run holds now; compaction included.

        The plan may be carried out by `retain`, and gives a little more: every file ends within a block.
        """
        log = self._writer.log()
        inventory = collect.take_inventory(
            self._writer.store, log, self._writer.index, self._writer.references_of
        )
        free, sizes = self.free_bytes() or 0, dict[str, int]()

        def size_of(key: str) -> int:
            if key not in sizes:
                sizes[key] = 0
                with suppress(ObjectMissing, ObjectBlocked):
                    sizes[key] = self._writer.store.size(key)
            return sizes[key]

        def weigh(plan: RetentionPlan) -> int:
            dropped = {commit.sequence for commit in plan.dropped}
            collected = collect.plan_gc(
                inventory, epoch=self._writer.claim.epoch, drop=dropped, keep_last=plan.keep_last
            )
            gained = sum(size_of(key) for key in (*collected.documents, *collected.packs))
            if collected.needed is None:
                return gained
            gone = {layout.pack_name(key) for key in collected.packs}
            rewritten = compaction.plan_compaction(
                {name: found for name, found in self._writer.index.packs.items() if name not in gone},
                collected.needed.blobs,
                compaction.after_a_save(self._writer.saved_bytes),
                epoch=self._writer.claim.epoch,
                condemned=self._writer.index.condemned,
                damaged=self._writer.index.suspect,
            )
            for step in rewritten.steps:  # each needs the room for its copy before it gives any
                if step.written > free + gained:
                    break
                gained += step.freed - step.written
            return gained

        return weigh


def _blocks(nbytes: int) -> int:
    """Return the bytes that a file of so many takes."""
    return -(-nbytes // BLOCK) * BLOCK

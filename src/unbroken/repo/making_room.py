"""What the writer of a run can say and do about the room on its disk: how much a save takes, and what a plan would give.

Nothing is decided here; `pressure` plans and the engine carries out.

Invariant: what a snapshot builds on is found, so that nobody deletes it before the snapshot is written.

Not promised: numbers to the byte. A file system takes whole blocks, and has more to keep than files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, pairwise

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.buffers import Content, pieces
from unbroken.format.compression import WORTH, WORTH_IN_BULK, Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.format.meta import Meta
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo import ballast, collect, compaction, fencing
from unbroken.repo.attempt import Attempt, Written
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, References
from unbroken.repo.coordinator import Coordinator
from unbroken.repo.encoding import ComponentEncoder, Part
from unbroken.repo.log import CommitLog
from unbroken.repo.pipeline import Pipeline
from unbroken.repo.reader import Reader
from unbroken.repo.retention import RetentionPlan
from unbroken.state.parts import labelled
from unbroken.state.snapshot import Rows, Snapshot
from unbroken.store.base import ByteStore, SupportsLocalPath
from unbroken.types import Digest, Sequence

BLOCK = 4096
"""Bytes of which a file takes whole multiples: no common file system has larger ones."""

RECORDS = 8 * BLOCK
"""Bytes of what comes beside a checkpoint: its commit, the record of its save, hints, new directories. A start writes less."""

BULK_BYTES = 64 << 20
"""A save that writes more is over sooner if only what shrinks to a half is compressed. Below, the bytes
matter more: a disk waits for its sync longer than for them."""


class MakesRoom(ABC):
    """A writer that can look after its disk. What it needs of `CheckpointWriter` is declared here."""

    _store: ByteStore
    _claim: fencing.Claim
    _index: BlobIndex
    _lists: ChunkLists
    _compression: Compression
    _coordinator: Coordinator | None
    _saved_bytes: int

    @property
    def is_alone(self) -> bool:
        """Whether no other rank takes part: only then may a save be tried again."""
        return self._coordinator is None

    def free_bytes(self) -> int | None:
        """Return how many bytes the disk has room for; None where nobody can tell."""
        return ballast.free_bytes(self._store)

    def lighten(self) -> None:
        """Have room for what is put on record before anything is deleted."""
        ballast.lighten(self._store)

    def reserve(self) -> None:
        """Have the ballast there again, as far as there is room; see `ballast`."""
        ballast.reserve(self._store, seed=self._claim.write_id)

    def builds_on(self, snapshot: Snapshot) -> frozenset[Sequence]:
        """Return the commits without which `snapshot` cannot be written: it holds only what has changed since."""
        bases = {
            blob.base.name
            for component in snapshot.components.values()
            for blob in component.blobs
            if isinstance(blob, Rows) and blob.base is not None
        }
        found: set[Sequence] = set()
        for commit in self._read_log().commits if bases else ():
            with suppress(CorruptObject, UnsupportedFormat, ObjectMissing):
                if not bases.isdisjoint(chunks.name for chunks in self._references_of(commit).lists):
                    found.add(commit.sequence)
        return frozenset(found)

    def is_whole(self, commit: Commit) -> bool:
        """Read every byte of a checkpoint, and return whether all are as they were written."""
        self._index.refresh()
        return not Reader(self._store, self._index, commit).verify(births=False)

    def room_for(self, snapshot: Snapshot, meta: Meta) -> int:
        """Return how many bytes a save of `snapshot` takes on the disk: it is carried out, but for the writing.

        Of several ranks each is taken to write as much as this one.
        """
        meta = self._complete(meta, snapshot)
        attempt, written = Attempt(self.order(meta)), Written()
        with self._encoders(snapshot) as (encoders, _):
            objects = self._parts(attempt, encoders, written)
            if self.is_alone:  # else the rest cannot be told before the others have said what they have
                objects = chain(objects, self._closing(attempt, meta, written, (), sign=False))
            size = sum(
                _blocks(sum(memoryview(piece).nbytes for piece in pieces(data))) for _, data in objects
            )
        return size * self._ranks + RECORDS + ballast.lacking(self._store)

    @property
    def _ranks(self) -> int:
        return 1 if self._coordinator is None else self._coordinator.size

    def weigher(self) -> Callable[[RetentionPlan], int]:
        """Return what says how many bytes a plan gives, of what the run holds now; compaction included.

        The plan may be carried out by `retain`, and gives a little more: every file ends within a block.
        """
        log = self._read_log()
        inventory = collect.take_inventory(self._store, log, self._index, self._references_of)
        free, sizes = self.free_bytes() or 0, dict[str, int]()

        def size_of(key: str) -> int:
            if key not in sizes:
                sizes[key] = 0
                with suppress(ObjectMissing, ObjectBlocked):
                    sizes[key] = self._store.size(key)
            return sizes[key]

        def weigh(plan: RetentionPlan) -> int:
            dropped = {commit.sequence for commit in plan.dropped}
            collected = collect.plan_gc(
                inventory, epoch=self._claim.epoch, drop=dropped, keep_last=plan.keep_last
            )
            gained = sum(size_of(key) for key in (*collected.documents, *collected.packs))
            if collected.needed is None:
                return gained
            gone = {layout.pack_name(key) for key in collected.packs}
            rewritten = compaction.plan_compaction(
                {name: found for name, found in self._index.packs.items() if name not in gone},
                collected.needed.blobs,
                compaction.after_a_save(self._saved_bytes),
                epoch=self._claim.epoch,
                condemned=self._index.condemned,
                damaged=self._index.suspect,
            )
            for step in rewritten.steps:  # each needs the room for its copy before it gives any
                if step.written > free + gained:
                    break
                gained += step.freed - step.written
            return gained

        return weigh

    @contextmanager
    def _encoders(
        self, snapshot: Snapshot
    ) -> Generator[tuple[list[ComponentEncoder], set[Digest]], None, None]:
        """Give what encodes a snapshot, and the set that it adds to the blobs which have to be written."""
        worth, live = self._worth(snapshot), snapshot.is_live
        if self._coordinator is not None:
            # Facts are taken before: rank 0 states its own as the others do.
            snapshot = labelled(snapshot, 0, replicated=self._coordinator.replicated)
        with Pipeline(self._compression, self.must_write, worth=worth, live=live) as pipeline:
            stored: set[Digest] = set()
            encoders = [
                ComponentEncoder(component, self._document_format, self._lists, pipeline, stored)
                for component in snapshot.components.values()
            ]
            for one, other in pairwise(encoders):
                one.following = other
            yield encoders, stored

    def _worth(self, snapshot: Snapshot) -> float:
        if not self._compression.by_speed:
            return WORTH
        captured = sum(blob.nbytes for part in snapshot.components.values() for blob in part.blobs)
        in_bulk = captured > BULK_BYTES and isinstance(self._store, SupportsLocalPath)
        return WORTH_IN_BULK if in_bulk else WORTH

    @abstractmethod
    def _complete(self, meta: Meta, snapshot: Snapshot) -> Meta: ...

    @property
    @abstractmethod
    def _document_format(self) -> DocumentFormat: ...

    @abstractmethod
    def order(self, meta: Meta) -> SaveOrder:
        """Name the place of a checkpoint."""

    @abstractmethod
    def must_write(self, digest: Digest) -> bool:
        """Whether a save must write this blob."""

    @abstractmethod
    def _read_log(self) -> CommitLog: ...

    @abstractmethod
    def _references_of(self, commit: Commit) -> References: ...

    @abstractmethod
    def _parts(
        self, attempt: Attempt, parts: Collection[Part], written: Written
    ) -> Iterator[tuple[str, Content]]: ...

    @abstractmethod
    def _closing(
        self,
        attempt: Attempt,
        meta: Meta,
        written: Written,
        others: Collection[RankRecord],
        *,
        sign: bool,
    ) -> Iterator[tuple[str, Content]]: ...


def _blocks(nbytes: int) -> int:
    """Return the bytes that a file of so many takes."""
    return -(-nbytes // BLOCK) * BLOCK

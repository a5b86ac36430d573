"""From a component in memory to what is written of it: blobs by digest, and a document that names them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Protocol

from unbroken.errors import CorruptObject, InternalError
from unbroken.format import document, layout
from unbroken.format.buffers import Buffer
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import WORTH, WORTH_IN_BULK, BlobCodec, Compression
from unbroken.format.digest import digest_of
from unbroken.format.document import CHUNK, BlobRef, chunks_of
from unbroken.format.manifest import DocumentEntry, DocumentFormat
from unbroken.repo.chunklists import ChunkLists
from unbroken.repo.opaque import opaque_places
from unbroken.repo.pipeline import Pipeline, PipelineRun, StoredBlob
from unbroken.state.snapshot import Base, Component, Rows, Snapshot
from unbroken.types import Digest

INLINE_CHUNKS = 32
"""A blob of more chunks than this is named by its chunk list instead of by every chunk."""

OWN_PACK_BYTES = 1 << 20
"""A component with at least so many new bytes gets packs of its own. Components differ in how long
their bytes live: a row of a replay buffer outlives many versions of the weights, and would keep them
on the disk if they lay in one pack."""

BULK_BYTES = 64 << 20
"""A save that writes more is over sooner if only what shrinks to a half is compressed. Below, the bytes
matter more: a disk waits for its sync longer than for them."""

PACK_BYTES = 256 << 20
"""A pack is closed when it holds this many bytes of blobs, uncompressed."""


@dataclass(frozen=True, slots=True)
class EncodedComponent:
    """A document, the blobs that it names by their sizes, and its chunk lists."""

    file_name: str
    entry: DocumentEntry
    data: bytes
    sizes: dict[Digest, int]
    lists: tuple[ChunkList, ...]
    opaque: tuple[str, ...]
    new: int | None = None
    """Bytes of blobs that had to be stored; None where nobody counted."""
    written: int | None = None
    """Bytes that they took, and the document."""


class Part(Protocol):
    """One component on its way into a checkpoint: first its blobs are used up, then it is finished."""

    def blobs(self) -> Iterator[StoredBlob]:
        """Yield every blob of the component that has to be stored."""
        ...

    def finish(self) -> EncodedComponent:
        """Return the document, whose blobs have all been yielded."""
        ...


@dataclass(slots=True)
class ComponentEncoder:
    """Encodes one component: first use up `blobs`, then take the result from `finish`.

    `stored` are the blobs that this save has stored already; those of this component are added.
    """

    component: Component
    fmt: DocumentFormat
    lists: ChunkLists
    pipeline: Pipeline
    stored: set[Digest]
    following: ComponentEncoder | None = None
    """The one that is used up after this one; its first chunks are under way when the last of this one are."""
    _run: PipelineRun[tuple[int, int]] | None = None
    _refs: list[BlobRef] = field(default_factory=list[BlobRef])
    _used: list[ChunkList] = field(default_factory=list[ChunkList])
    _new: int = 0
    _written: int = 0

    def blobs(self) -> Iterator[StoredBlob]:
        """Yield every blob of the component that has to be stored."""
        for blob in self._blobs():
            self._new += blob.size
            self._written += memoryview(blob.content).nbytes
            yield blob

    def _blobs(self) -> Iterator[StoredBlob]:
        found: list[dict[int, Digest]] = [{} for _ in self.component.blobs]
        for (blob, i), digest, new in self._started():
            found[blob][i] = digest
            if new is not None and digest not in self.stored:
                self.stored.add(digest)
                yield new
        for i, digests in enumerate(found):
            yield from self._finish_blob(i, digests)

    def begin(self) -> None:
        """Let the first chunks be digested and compressed."""
        self._started().begin()

    def finish(self) -> EncodedComponent:
        """Return the document, whose blobs have all been yielded."""
        data = document.encode(self.component, self._refs, self.fmt)
        return EncodedComponent(
            file_name=layout.document(self.component.name, self.fmt),
            entry=DocumentEntry(
                component=self.component.name,
                digest=digest_of(data),
                size=len(data),
                format=self.fmt,
            ),
            data=data,
            sizes={digest: size for ref in self._refs for digest, size in ref.named()},
            lists=tuple(self._used),
            opaque=tuple(opaque_places(self.component.roots)),
            new=self._new,
            written=self._written + len(data),
        )

    def _started(self) -> PipelineRun[tuple[int, int]]:
        if self._run is None:
            then = None if self.following is None else self.following.begin
            self._run = self.pipeline.run(self._chunks(), then=then)
        return self._run

    def _chunks(self) -> Iterator[tuple[tuple[int, int], Buffer]]:
        for number, blob in enumerate(self.component.blobs):
            if isinstance(blob, Rows):
                for start, content in blob.ranges:
                    for i, chunk in enumerate(chunks_of(content.data, blob.chunk)):
                        yield (number, start // blob.chunk + i), chunk
            else:
                for i, chunk in enumerate(chunks_of(blob.data)):
                    yield (number, i), chunk

    def _finish_blob(self, number: int, digests: dict[int, Digest]) -> Iterator[StoredBlob]:
        blob = self.component.blobs[number]
        if not isinstance(blob, Rows) and len(digests) <= INLINE_CHUNKS:
            self._refs.append(BlobRef(size=blob.nbytes, chunks=[digests[i] for i in range(len(digests))]))
            return
        chunk = blob.chunk if isinstance(blob, Rows) else CHUNK
        chunks = self._list(number, -(-blob.size // chunk), digests)
        self._refs.append(BlobRef(size=blob.size, chunk=chunk, tree=chunks.name))
        self._used.append(chunks)
        self.component.saved[number] = Base(chunks.name, blob.size, chunk)
        for node in chunks.nodes():
            if node.name not in self.stored and self.pipeline.is_new(node.name):
                self.stored.add(node.name)
                yield StoredBlob(node.name, len(node.data), BlobCodec.RAW, node.data)

    def _list(self, number: int, count: int, digests: dict[int, Digest]) -> ChunkList:
        blob = self.component.blobs[number]
        if isinstance(blob, Rows) and blob.base is not None:
            base = self.lists.get(blob.base.name, blob.base.count)
            try:
                chunks = base.replaced(count, digests)
            except KeyError as error:
                raise InternalError(f"Blob {number} of {self.component.name} lacks chunk {error}.") from error
            self._check(chunks, digests.values())
        else:
            chunks = ChunkList.of([digests[i] for i in range(count)])
        self.lists.add(chunks)
        return chunks

    def _check(self, chunks: ChunkList, written: Collection[Digest]) -> None:
        """Refuse to build on chunks that are known to be damaged or gone; nobody has their bytes here."""
        suspect = self.lists.index.suspect
        if suspect and not suspect.isdisjoint(set(chunks).difference(written)):
            raise CorruptObject(
                f"What an earlier checkpoint holds of {self.component.name} is damaged.",
                hint="The next save writes all of it anew.",
            )


def stored_entry(blob: StoredBlob) -> tuple[Digest, int, BlobCodec, Buffer]:
    """Return a blob as a pack takes it."""
    return blob.digest, blob.size, blob.codec, blob.content


def packs_of(parts: Iterable[Part]) -> Iterator[Iterator[StoredBlob]]:
    """Yield the contents of each pack to write. Each must be used up before the next is taken.

    What few new blobs a component has goes into a pack that it shares with others, which comes last.
    """
    shared: list[StoredBlob] = []
    for part in parts:
        blobs = part.blobs()
        head: list[StoredBlob] = []
        size = 0
        for blob in blobs:
            head.append(blob)
            size += blob.size
            if size >= OWN_PACK_BYTES:
                yield from _split(chain(head, blobs))
                break
        else:
            shared += head
    if shared:
        yield from _split(iter(shared))


def _split(blobs: Iterator[StoredBlob]) -> Iterator[Iterator[StoredBlob]]:
    for first in blobs:
        yield _up_to_a_pack(first, blobs)


def _up_to_a_pack(first: StoredBlob, rest: Iterator[StoredBlob]) -> Iterator[StoredBlob]:
    yield first
    size = first.size
    while size < PACK_BYTES and (blob := next(rest, None)) is not None:
        yield blob
        size += blob.size


@contextmanager
def encoders(
    snapshot: Snapshot,
    must_write: Callable[[Digest], bool],
    *,
    fmt: DocumentFormat,
    lists: ChunkLists,
    compression: Compression,
    on_disk: bool,
) -> Generator[tuple[list[ComponentEncoder], set[Digest]], None, None]:
    """Give what encodes a snapshot, and the set that it adds to the blobs which have to be written."""
    worth = _worth(snapshot, compression, on_disk=on_disk)
    with Pipeline(compression, must_write, worth=worth, live=snapshot.is_live) as pipeline:
        stored: set[Digest] = set()
        found = [
            ComponentEncoder(component, fmt, lists, pipeline, stored)
            for component in snapshot.components.values()
        ]
        for one, other in pairwise(found):
            one.following = other
        yield found, stored


def _worth(snapshot: Snapshot, compression: Compression, *, on_disk: bool) -> float:
    if not compression.by_speed:
        return WORTH
    captured = sum(blob.nbytes for part in snapshot.components.values() for blob in part.blobs)
    return WORTH_IN_BULK if captured > BULK_BYTES and on_disk else WORTH

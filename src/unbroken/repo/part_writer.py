"""Writes the part that one of several processes has of a checkpoint which another one commits.

The order of things is that of `writer`: packs, their indexes, documents; all of it is durable when `write`
returns. Who commits is told by a `RankRecord`.

A blob is not written again if the commit that was built on needs it, and on no other ground: packs of a save
that came to nothing may be swept at any moment after it. Nothing is ever deleted here.

Not promised: that a checkpoint exists when a part of it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from unbroken.errors import CorruptObject, InternalError
from unbroken.format import layout, pack
from unbroken.format.buffers import Content
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.format.pack import PackIndex
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo import fencing, names
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed, References
from unbroken.repo.encoding import ComponentEncoder, EncodedComponent, packs_of, stored_entry
from unbroken.repo.pipeline import Pipeline
from unbroken.repo.process import Process
from unbroken.repo.reader import Reader
from unbroken.state.snapshot import Component, Rows
from unbroken.store.base import ByteStore, put_all
from unbroken.types import Digest


class PartWriter:
    """Writes under the claim of another process, as long as no later epoch was claimed."""

    def __init__(
        self,
        store: ByteStore,
        claim: fencing.Claim,
        *,
        document_format: DocumentFormat,
        compression: Compression,
        token: Callable[[], str],
    ) -> None:
        self._store = store
        self._claim = claim
        self._document_format: DocumentFormat = document_format
        self._compression = compression
        self._token = token
        self.index = BlobIndex(store)
        self.lists = ChunkLists(self.index)
        """The chunk lists of the run, as they are read and written here."""
        self._held = Needed()

    def build_on(self, commit: Commit, components: Collection[str]) -> None:
        """Rely on what a commit holds of these components, as far as it has them.

        The one who commits must not delete that commit before the parts are written.

        Raises:
            CorruptObject: what it holds cannot be told; then nothing is relied on.
        """
        self.index.refresh()
        self._held = Needed()
        self._held.add(Reader(self._store, self.index, commit).references(self.lists, components))

    def look_again(self) -> None:
        """Find out whether what is relied on still lies where it did.

        What others have written is not read, except where a blob is missing that the one who commits may have
        moved: the indexes of all, read by all, would be what grows fastest with the number of processes.
        """
        self.index.forget_gone()
        if any(not self.index.places(digest) for digest in self._held.blobs):
            self.index.refresh()
            self.index.suspect.update(d for d in self._held.blobs if not self.index.places(d))

    def rely_on(self, references: References, *, lists: Collection[ChunkList] = ()) -> None:
        """Rely on what the newest commit is known to need, and on nothing else. `lists` are kept in memory, too."""
        self._held = Needed()
        self._held.add(references)
        self.lists.keep({chunks.name for chunks in (*references.lists, *lists)})

    def rely_on_nothing(self) -> None:
        """Write everything anew next time: which commit is the newest is not known."""
        self._held = Needed()

    def digested(self, components: Collection[Component]) -> list[EncodedComponent]:
        """Return what components would become. Nothing is written."""
        found: list[EncodedComponent] = []
        with Pipeline(self._compression, lambda _: False) as pipeline:
            for component in components:
                encoder = self._encoder(component, pipeline, set())
                for _ in encoder.blobs():
                    raise InternalError("What was only to be digested was about to be written.")
                found.append(encoder.finish())
        return found

    def write(
        self, components: Collection[Component], directory: str, *, live: bool = False
    ) -> list[EncodedComponent]:
        """Write components into the directory of a checkpoint, and return what they have become.

        `live`: their bytes lie in the memory of a training that may still write there.

        Raises:
            StoreError: it could not be written.
            CorruptObject: only a part of an array was captured, and the rest is in no commit that is relied on.
            Fenced: a newer process has taken the run over.
        """
        for component in components:
            self._check_bases(component)
        written: list[EncodedComponent] = []
        indexes: list[PackIndex] = []
        stored: set[Digest] = set()
        with Pipeline(self._compression, self._must_write, live=live) as pipeline:
            encoders = [self._encoder(component, pipeline, stored) for component in components]
            for one, other in pairwise(encoders):
                one.following = other
            put_all(self._store, self._objects(directory, encoders, written, indexes))
        for index in indexes:
            self.index.add(index)
        self.index.suspect.difference_update(stored)
        return written

    def _check_bases(self, component: Component) -> None:
        # The one who commits may have deleted such a base by now, and here nobody has its bytes.
        bases = [blob.base for blob in component.blobs if isinstance(blob, Rows) and blob.base is not None]
        if any(base.name not in self._held for base in bases):
            raise CorruptObject(
                f"What an earlier checkpoint holds of {component.name} may be gone.",
                hint="The next save writes all of it anew.",
            )

    def _encoder(self, component: Component, pipeline: Pipeline, stored: set[Digest]) -> ComponentEncoder:
        return ComponentEncoder(component, self._document_format, self.lists, pipeline, stored)

    def _must_write(self, digest: Digest) -> bool:
        if digest in self.index.suspect or digest not in self._held:
            return True
        return not self.index.places(digest)

    def _objects(
        self,
        directory: str,
        encoders: Collection[ComponentEncoder],
        written: list[EncodedComponent],
        indexes: list[PackIndex],
    ) -> Iterator[tuple[str, Content]]:
        for blobs in packs_of(encoders):
            fencing.check(self._store, self._claim)
            name = names.write_id(self._token(), self._claim.epoch)
            writer = pack.PackWriter(name)
            yield layout.pack(name), writer.stream(map(stored_entry, blobs))
            indexes.append(writer.index())
            yield layout.index(name), pack.encode_index(indexes[-1])
        written += [encoder.finish() for encoder in encoders]
        for part in written:
            yield f"{directory}/{part.file_name}", part.data


def record_of(
    parts: Collection[EncodedComponent],
    order: SaveOrder,
    *,
    rank: int,
    job: str,
    owner: Process,
    time: float,
    nbytes: int,
) -> RankRecord:
    """Return what the one who commits has to know of the parts that a rank has written."""
    return RankRecord(
        job=job,
        **owner.as_owner(),
        time=time,
        rank=rank,
        step=order.step,
        write_id=order.write_id,
        documents={part.file_name: part.entry for part in parts},
        blobs={digest: size for part in parts for digest, size in part.sizes.items()},
        lists={chunks.name: len(chunks) for part in parts for chunks in part.lists},
        opaque=sorted(place for part in parts for place in part.opaque),
        nbytes=nbytes,
    )

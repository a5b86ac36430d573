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

from unbroken.format import layout, pack
from unbroken.format.buffers import Content
from unbroken.format.compression import Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo import fencing, names
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed
from unbroken.repo.encoding import ComponentEncoder, EncodedComponent, packs_of, stored_entry
from unbroken.repo.pipeline import Pipeline
from unbroken.repo.process import Process
from unbroken.repo.reader import Reader
from unbroken.state.snapshot import Component
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
        self._index = BlobIndex(store)
        self._lists = ChunkLists(self._index)
        self._held = Needed()

    def build_on(self, commit: Commit, components: Collection[str]) -> None:
        """Rely on what a commit holds of these components, as far as it has them.

        The one who commits must not delete that commit before the parts are written.

        Raises:
            CorruptObject: what it holds cannot be told; then nothing is relied on.
        """
        self._index.refresh()
        self._held = Needed()
        self._held.add(Reader(self._store, self._index, commit).references(self._lists, components))

    def write(self, components: Collection[Component], directory: str) -> list[EncodedComponent]:
        """Write components into the directory of a checkpoint, and return what they have become.

        Raises:
            StoreError: it could not be written.
            Fenced: a newer process has taken the run over.
        """
        written: list[EncodedComponent] = []
        stored: set[Digest] = set()
        with Pipeline(self._compression, self._must_write) as pipeline:
            encoders = [
                ComponentEncoder(component, self._document_format, self._lists, pipeline, stored)
                for component in components
            ]
            for one, other in pairwise(encoders):
                one.following = other
            put_all(self._store, self._objects(directory, encoders, written))
        return written

    def _must_write(self, digest: Digest) -> bool:
        return digest not in self._held or not self._index.places(digest)

    def _objects(
        self, directory: str, encoders: Collection[ComponentEncoder], written: list[EncodedComponent]
    ) -> Iterator[tuple[str, Content]]:
        for blobs in packs_of(encoders):
            fencing.check(self._store, self._claim)
            name = names.write_id(self._token(), self._claim.epoch)
            writer = pack.PackWriter(name)
            yield layout.pack(name), writer.stream(map(stored_entry, blobs))
            yield layout.index(name), pack.encode_index(writer.index())
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
        pid=owner.pid,
        process_start=owner.start,
        host=owner.host,
        boot_id=owner.boot_id,
        time=time,
        rank=rank,
        step=order.step,
        write_id=order.write_id,
        documents={part.file_name: part.entry for part in parts},
        blobs={digest: size for part in parts for digest, size in part.sizes.items()},
        opaque=sorted(place for part in parts for place in part.opaque),
        nbytes=nbytes,
    )

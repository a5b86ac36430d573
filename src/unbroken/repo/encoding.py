"""From a component in memory to what is written of it: a document, and blobs by digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from unbroken.format import document, layout
from unbroken.format.digest import Buffer, digest_of
from unbroken.format.document import BlobRef, chunks_of
from unbroken.format.manifest import DocumentEntry, DocumentFormat
from unbroken.repo.blobs import PACK_BYTES
from unbroken.repo.opaque import opaque_places
from unbroken.state.snapshot import Component
from unbroken.types import Digest

OWN_PACK_BYTES = 1 << 20
"""A component with at least so many new bytes gets packs of its own. Components differ in how long
their bytes live: a row of a replay buffer outlives many versions of the weights, and would keep them
on the disk if they lay in one pack."""


@dataclass(frozen=True, slots=True)
class EncodedComponent:
    """A document and the chunks that it names. `chunks` are views into the snapshot, not copies."""

    file_name: str
    entry: DocumentEntry
    data: bytes
    chunks: dict[Digest, Buffer]
    opaque: tuple[str, ...]

    @property
    def sizes(self) -> dict[Digest, int]:
        return {digest: memoryview(chunk).nbytes for digest, chunk in self.chunks.items()}


def encode_component(component: Component, fmt: DocumentFormat) -> EncodedComponent:
    """Digest the component's blobs and write its document."""
    chunks: dict[Digest, Buffer] = {}
    refs: list[BlobRef] = []
    for blob in component.blobs:
        digests: list[Digest] = []
        for chunk in chunks_of(blob):
            digest = digest_of(chunk)
            chunks.setdefault(digest, chunk)
            digests.append(digest)
        refs.append(BlobRef(size=blob.nbytes, chunks=digests))
    data = document.encode(component, refs, fmt)
    return EncodedComponent(
        file_name=layout.document(component.name, fmt),
        entry=DocumentEntry(component=component.name, digest=digest_of(data), size=len(data), format=fmt),
        data=data,
        chunks=chunks,
        opaque=tuple(opaque_places(component.roots)),
    )


def group_into_packs(
    encoded: Sequence[EncodedComponent], is_new: Callable[[Digest], bool]
) -> Iterator[list[tuple[Digest, Buffer]]]:
    """Yield the chunks that must be written, one list a pack, each chunk once."""
    seen: set[Digest] = set()
    shared: list[tuple[Digest, Buffer]] = []
    for part in encoded:
        new = [
            (digest, chunk) for digest, chunk in part.chunks.items() if digest not in seen and is_new(digest)
        ]
        seen.update(digest for digest, _ in new)
        if sum(memoryview(chunk).nbytes for _, chunk in new) < OWN_PACK_BYTES:
            shared += new
        else:
            yield from _split(new)
    yield from _split(shared)


def _split(chunks: list[tuple[Digest, Buffer]]) -> Iterator[list[tuple[Digest, Buffer]]]:
    pack: list[tuple[Digest, Buffer]] = []
    size = 0
    for digest, chunk in chunks:
        if pack and size + memoryview(chunk).nbytes > PACK_BYTES:
            yield pack
            pack, size = [], 0
        pack.append((digest, chunk))
        size += memoryview(chunk).nbytes
    if pack:
        yield pack

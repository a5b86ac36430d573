"""Keeps snapshots in memory as a run keeps them: arrays as chunk lists, each built on the one before.

Cheap enough for ten thousand cases. What it does with a snapshot is what `repo/encoding.py` does, without
packs, documents and threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unbroken.capture.source import GraftSource
from unbroken.engine.restore import restore
from unbroken.format.chunks import ChunkList
from unbroken.format.digest import digest_of
from unbroken.format.document import chunks_of
from unbroken.state.snapshot import Base, Bytes, Component, Rows, Snapshot
from unbroken.state.staging import own
from unbroken.types import Digest


class Full(Exception):
    """A save that failed."""


@dataclass
class Shelf:
    """What was saved, and how much each save has captured."""

    chunks: dict[Digest, bytes] = field(default_factory=dict[Digest, bytes])
    lists: dict[Digest, ChunkList] = field(default_factory=dict[Digest, ChunkList])
    captured: dict[str, int] = field(default_factory=dict[str, int])
    """Component -> bytes that the last save has captured."""
    blobs: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """The same for each array, by the component and the number of its blob."""

    def save(self, source: GraftSource, *, step: int = 0, fail: bool = False) -> Snapshot:
        """Save `source` as the engine does, audit included, and return what a reader would get."""
        snapshot = own(source.capture())
        self.captured = {
            name: sum(blob.nbytes for blob in component.blobs)
            for name, component in snapshot.components.items()
        }
        self.blobs = {
            (name, i): blob.nbytes
            for name, component in snapshot.components.items()
            for i, blob in enumerate(component.blobs)
        }
        loaded = self._write(snapshot)
        if fail:
            raise Full
        source.committed(snapshot)
        source.audit(self.chunks_of, step=step)
        return loaded

    def restore(self, source: GraftSource, saved: Snapshot) -> None:
        """Bring the objects of `source` to a state that was saved."""
        restore(source, saved, birth=None, now=source.skeleton())

    def chunks_of(self, base: Base) -> ChunkList:
        return self.lists[base.name]

    def _write(self, snapshot: Snapshot) -> Snapshot:
        read: dict[str, Component] = {}
        for name, component in snapshot.components.items():
            blobs = [self._blob(component, i) for i in range(len(component.blobs))]
            read[name] = Component(name, component.roots, [*blobs], component.tensors)
            read[name].saved = dict(component.saved)
        return Snapshot(read)

    def _blob(self, component: Component, i: int) -> Bytes:
        blob = component.blobs[i]
        if not isinstance(blob, Rows):
            return blob.copy()
        digests: dict[int, Digest] = {}
        for start, content in blob.ranges:
            assert start % blob.chunk == 0
            for j, chunk in enumerate(chunks_of(content.data, blob.chunk)):
                digest = digests[start // blob.chunk + j] = digest_of(chunk)
                self.chunks[digest] = bytes(chunk)
        count = -(-blob.size // blob.chunk)
        if blob.base is None:
            chunks = ChunkList.of([digests[j] for j in range(count)])
        else:
            chunks = self.lists[blob.base.name].replaced(count, digests)
        self.lists[chunks.name] = chunks
        component.saved[i] = Base(chunks.name, blob.size, blob.chunk)
        data = b"".join(self.chunks[digest] for digest in chunks)
        assert len(data) == blob.size
        return np.frombuffer(bytearray(data), np.uint8)


def contents(snapshot: Snapshot) -> Mapping[str, tuple[object, list[bytes]]]:
    """Return everything that a snapshot says, to be compared with another's."""
    return {
        name: (component.roots, [component.content(i).tobytes() for i in range(len(component.blobs))])
        for name, component in snapshot.components.items()
    }

"""The chunk lists of a run, kept in memory by name: each is read once, and saves build on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from unbroken.errors import CorruptObject
from unbroken.format.chunks import ChunkList, Node, read_list
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.fetch import Destination, fetch_blobs
from unbroken.types import Digest


@dataclass(slots=True)
class ChunkLists:
    """Reads lists through `index`, and remembers them until they are forgotten."""

    index: BlobIndex
    known: dict[Digest, ChunkList] = field(default_factory=dict[Digest, ChunkList])
    _nodes: dict[Digest, Node] = field(default_factory=dict[Digest, Node])
    """Of all lists that are known, so that of a list that follows one only what is new is read."""

    def get(self, name: Digest, count: int) -> ChunkList:
        """Return the list of `count` chunks of this name.

        Raises:
            CorruptObject: a part of it is missing or damaged.
        """
        found = self.known.get(name)
        if found is None:
            found = read_list(name, count, self._fetch, known=self._nodes)
            self.add(found)
        if len(found) != count:
            raise CorruptObject(
                f"The chunk list {name[:19]} has {len(found)} chunks, not {count}.", digest=name
            )
        return found

    def add(self, chunks: ChunkList) -> None:
        """Remember a list that is being written."""
        self.known[chunks.name] = chunks
        for node in chunks.nodes_outside(self._nodes):
            self._nodes[node.name] = node

    def keep(self, names: Collection[Digest]) -> None:
        """Forget all lists but these."""
        kept = {name: chunks for name, chunks in self.known.items() if name in names}
        if len(kept) < len(self.known):
            self.known, self._nodes = {}, {}
            for chunks in kept.values():
                self.add(chunks)

    def _fetch(self, wanted: Mapping[Digest, int]) -> dict[Digest, bytes]:
        found = {digest: bytearray(size) for digest, size in wanted.items()}
        destinations = {
            digest: Destination(len(place), (memoryview(place),)) for digest, place in found.items()
        }
        for fetched in fetch_blobs(self.index, destinations):
            if fetched.fault is not None:
                raise fetched.fault.error()
        return {digest: bytes(place) for digest, place in found.items()}


@dataclass(frozen=True, slots=True)
class References:
    """Everything in packs that one checkpoint needs: blobs that its manifest names, and chunk lists."""

    named: frozenset[Digest]
    lists: tuple[ChunkList, ...] = ()
    births: frozenset[Digest] = frozenset()
    """Birth documents of its ranks, beside the one that its commit names."""


@dataclass(slots=True)
class Needed:
    """Every blob that some checkpoints need. What their lists share is looked at once."""

    blobs: set[Digest] = field(default_factory=set[Digest])
    _nodes: set[Digest] = field(default_factory=set[Digest])
    """Nodes of lists, with everything below them. Apart from the blobs: an array may hold a node's bytes."""

    def add(self, references: References) -> None:
        """Add what one more checkpoint needs. The cost is that of what it does not share with the others."""
        self.blobs |= references.named
        for chunks in references.lists:
            for node in chunks.nodes_outside(self._nodes):
                self._nodes.add(node.name)
                self.blobs.add(node.name)
                if not node.level:
                    self.blobs.update(node.children)

    def __contains__(self, digest: object) -> bool:
        return digest in self.blobs


def all_blobs(references: Iterable[References]) -> Needed:
    """Return every blob that any of these checkpoints needs."""
    needed = Needed()
    for one in references:
        needed.add(one)
    return needed

"""The chunk lists of a run, kept in memory by name: each is read once, and saves build on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from unbroken.errors import CorruptObject
from unbroken.format.chunks import ChunkList, read_list
from unbroken.repo.blobs import BlobIndex, read_blobs
from unbroken.repo.fault import ObjectFault
from unbroken.types import Digest


@dataclass(slots=True)
class ChunkLists:
    """Reads lists through `index`, and remembers them until they are forgotten."""

    index: BlobIndex
    known: dict[Digest, ChunkList] = field(default_factory=dict[Digest, ChunkList])

    def get(self, name: Digest, count: int) -> ChunkList:
        """Return the list of `count` chunks of this name.

        Raises:
            CorruptObject: a part of it is missing or damaged.
        """
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = read_list(name, count, self._fetch)
        if len(found) != count:
            raise CorruptObject(
                f"The chunk list {name[:19]} has {len(found)} chunks, not {count}.", digest=name
            )
        return found

    def add(self, chunks: ChunkList) -> None:
        """Remember a list that is being written."""
        self.known[chunks.name] = chunks

    def keep(self, names: Collection[Digest]) -> None:
        """Forget all lists but these."""
        self.known = {name: chunks for name, chunks in self.known.items() if name in names}

    def _fetch(self, wanted: Mapping[Digest, int]) -> dict[Digest, bytes]:
        found: dict[Digest, bytes] = {}
        for read in read_blobs(self.index, wanted):
            if isinstance(read.outcome, ObjectFault):
                raise read.outcome.error()
            found[read.digest] = read.outcome
        return found


@dataclass(frozen=True, slots=True)
class References:
    """Everything in packs that one checkpoint needs: blobs that its manifest names, and chunk lists."""

    named: frozenset[Digest]
    lists: tuple[ChunkList, ...] = ()


def all_blobs(references: Iterable[References]) -> set[Digest]:
    """Return every blob that any of these checkpoints needs. What lists share is looked at once."""
    needed: set[Digest] = set()
    for one in references:
        needed |= one.named
        for chunks in one.lists:
            for node in chunks.nodes():
                if node.level or node.name not in needed:
                    needed.add(node.name)
                    needed.update(node.children)
    return needed

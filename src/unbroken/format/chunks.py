"""Chunk lists: which chunks the bytes of one array consist of, as a tree of small blobs.

A list of 100 GB names 400,000 chunks. As a tree it is written once; a save that changes some neighbouring
chunks writes the nodes above them, whatever the size of the rest. A node is named by the digest of its
bytes, like every blob, so the name of the root vouches for the whole list:

    magic "UNBT", level (0: its children are chunks), digest algorithm, two zero bytes, 32 bytes a child

Not promised: that equal bytes cut into chunks of another size have the same name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from unbroken.errors import CorruptObject
from unbroken.format.digest import DIGEST_BYTES, Algorithm, digest_of, join, split
from unbroken.types import Digest

MAX_CHUNKS = 1 << 26
"""No array has more: 64 TiB in chunks of the usual size. What a few nodes announce, a reader has to make room for."""

FAN_OUT = 256
"""Children of a node. A node has 8 KiB at most, which is what a changed chunk costs beside itself."""

_HEADER = struct.Struct("<4sBBH")
_MAGIC = b"UNBT"
_ALGORITHMS = (Algorithm.BLAKE3, Algorithm.SHA256)


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the tree. `data` are its bytes, `name` their digest."""

    level: int
    children: tuple[Digest, ...]
    data: bytes
    name: Digest

    @classmethod
    def of(cls, level: int, children: Sequence[Digest]) -> Node:
        """Make the node of these children, whose digests are all of one algorithm."""
        algorithm = split(children[0])[0]
        header = _HEADER.pack(_MAGIC, level, _ALGORITHMS.index(algorithm) + 1, 0)
        data = header + b"".join([split(child)[1] for child in children])
        return cls(level, tuple(children), data, digest_of(data, algorithm=algorithm))

    @classmethod
    def read(cls, data: bytes, name: Digest, *, level: int, count: int) -> Node:
        """Return the node in `data`, which must have this level and so many children."""
        if len(data) != node_size(count):
            raise CorruptObject(f"The chunk list {name[:19]} has {len(data)} bytes.", digest=name)
        fields: tuple[bytes, int, int, int] = _HEADER.unpack_from(data)
        magic, found, algorithm, reserved = fields
        if magic != _MAGIC or found != level or reserved or not 1 <= algorithm <= len(_ALGORITHMS):
            raise CorruptObject(f"{name[:19]} is no chunk list of level {level}.", digest=name)
        kind = _ALGORITHMS[algorithm - 1]
        starts = range(_HEADER.size, len(data), DIGEST_BYTES)
        return cls(level, tuple(join(kind, data[at : at + DIGEST_BYTES]) for at in starts), data, name)


def node_size(count: int) -> int:
    """Return the bytes of a node with so many children."""
    return _HEADER.size + count * DIGEST_BYTES


class ChunkList:
    """The chunks of one array, in order. Never changes; `replaced` gives a list that shares its nodes.

    >>> from unbroken.format.digest import digest_of
    >>> one = ChunkList.of([digest_of(b"a"), digest_of(b"b")])
    >>> one.replaced(2, {1: digest_of(b"b")}).name == one.name
    True
    """

    __slots__ = ("_levels",)

    def __init__(self, levels: tuple[tuple[Node, ...], ...]) -> None:
        self._levels = levels

    @classmethod
    def of(cls, digests: Sequence[Digest]) -> ChunkList:
        """Make the list of these chunks, at least one."""
        return cls(_grown([Node.of(0, digests[i : i + FAN_OUT]) for i in range(0, len(digests), FAN_OUT)]))

    @property
    def name(self) -> Digest:
        """The digest of the root."""
        return self._levels[-1][0].name

    @property
    def root(self) -> Node:
        return self._levels[-1][0]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The nodes whose children are chunks."""
        return self._levels[0]

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, the root first."""
        for level in reversed(self._levels):
            yield from level

    def nodes_outside(self, known: Container[Digest]) -> Iterator[Node]:
        """Yield the nodes that are not in `known`, the root first; nothing below a node that is in it.

        So what a list shares with one that was looked at before costs nothing. Whoever adds nodes to `known`
        on the way adds each when it comes, and not before.
        """
        numbers: Iterable[int] = range(1)
        for level in reversed(range(len(self._levels))):
            found: list[int] = []
            for number in numbers:
                node = self._levels[level][number]
                if node.name not in known:
                    found.append(number)
                    yield node
            below = len(self._levels[level - 1])
            numbers = [i for n in found for i in range(n * FAN_OUT, min((n + 1) * FAN_OUT, below))]

    def __len__(self) -> int:
        return (len(self.leaves) - 1) * FAN_OUT + len(self.leaves[-1].children)

    def __getitem__(self, i: int) -> Digest:
        return self.leaves[i // FAN_OUT].children[i % FAN_OUT]

    def __iter__(self) -> Iterator[Digest]:
        for leaf in self.leaves:
            yield from leaf.children

    def replaced(self, count: int, changes: Mapping[int, Digest]) -> ChunkList:
        """Return the list of `count` chunks that has these digests at `changes`, and its own elsewhere.

        Raises KeyError if a chunk is neither in this list nor in `changes`.
        """
        leaves: list[Node] = []
        touched = {i // FAN_OUT for i in changes}
        for number in range(-(-count // FAN_OUT)):
            first = number * FAN_OUT
            wanted = min(FAN_OUT, count - first)
            old = self.leaves[number] if number < len(self.leaves) else None
            if old is not None and number not in touched and len(old.children) == wanted:
                leaves.append(old)
                continue
            kept = old.children if old is not None else ()
            children = [
                changes[i] if i in changes or i - first >= len(kept) else kept[i - first]
                for i in range(first, first + wanted)
            ]
            leaves.append(Node.of(0, children))
        return ChunkList(_grown(leaves, old=self._levels))


def _grown(leaves: Sequence[Node], *, old: tuple[tuple[Node, ...], ...] = ()) -> tuple[tuple[Node, ...], ...]:
    """Return all levels above and including `leaves`; nodes of `old` that are still right are kept."""
    levels = [tuple(leaves)]
    while len(levels[-1]) > 1:
        below, level = levels[-1], len(levels)
        known = {node.children: node for node in old[level]} if level < len(old) else {}
        nodes: list[Node] = []
        for i in range(0, len(below), FAN_OUT):
            children = tuple(node.name for node in below[i : i + FAN_OUT])
            nodes.append(known.get(children) or Node.of(level, children))
        levels.append(tuple(nodes))
    return tuple(levels)


def _checked(node: Node, *, level: int, count: int) -> Node:
    if node.level != level or len(node.children) != count:
        raise CorruptObject(f"The node {node.name[:19]} is not what its place demands.", digest=node.name)
    return node


Fetch = Callable[[Mapping[Digest, int]], Mapping[Digest, bytes]]
"""Returns the checked bytes of blobs, given by digest and size."""


def shape(count: int) -> list[int]:
    """Return the number of nodes on each level of a list of `count` chunks, from the leaves up.

    >>> shape(70000)
    [274, 2, 1]
    """
    levels = [-(-count // FAN_OUT)]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // FAN_OUT))
    return levels


def root_size(count: int) -> int:
    """Return the bytes of the root of a list of `count` chunks."""
    levels = shape(count)
    return node_size(levels[-2] if len(levels) > 1 else count)


def read_list(
    name: Digest, count: int, fetch: Fetch, *, known: Mapping[Digest, Node] = MappingProxyType({})
) -> ChunkList:
    """Read the list of `count` chunks whose root has this name, a level at a time. Nodes that are `known` by
    their names are not fetched: what a list shares with another one was checked there.

    Raises CorruptObject where a node is not what its place demands; and whatever `fetch` raises.
    """
    numbers = shape(count)
    levels: list[tuple[Node, ...]] = []
    names: Sequence[Digest] = [name]
    for level in reversed(range(len(numbers))):
        below = numbers[level - 1] if level else count
        counts = [min(FAN_OUT, below - i * FAN_OUT) for i in range(len(names))]
        wanted = {node: node_size(n) for node, n in zip(names, counts, strict=True)}
        found = {node: known[node] for node in wanted if node in known}
        data = fetch({node: size for node, size in wanted.items() if node not in found})
        # Each once: a few nodes that name themselves again and again can announce any number of chunks.
        read: dict[tuple[Digest, int], Node] = {}
        for node, n in dict.fromkeys(zip(names, counts, strict=True)):
            read[node, n] = (
                _checked(found[node], level=level, count=n)
                if node in found
                else Node.read(data[node], node, level=level, count=n)
            )
        nodes = tuple(read[one] for one in zip(names, counts, strict=True))
        levels.append(nodes)
        if level:
            names = [child for node in nodes for child in node.children]
    return ChunkList(tuple(reversed(levels)))

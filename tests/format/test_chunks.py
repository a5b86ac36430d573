"""Chunk lists as trees: equal however they were made, read back with every node checked, cheap to change."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.errors import CorruptObject
from unbroken.format.chunks import FAN_OUT, ChunkList, Node, node_size, read_list, root_size, shape
from unbroken.format.digest import DIGEST_BYTES, Algorithm, digest_of, join
from unbroken.types import Digest

SIZES = [1, 2, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, FAN_OUT**2, FAN_OUT**2 + 1]


def chunk(number: int) -> Digest:
    """Return the digest of a chunk that was never there."""
    return join(Algorithm.BLAKE3, number.to_bytes(DIGEST_BYTES, "little"))


def simulated(count: int, *, first: int = 0) -> list[Digest]:
    return [chunk(first + i) for i in range(count)]


def nodes_of(chunks: ChunkList) -> dict[Digest, bytes]:
    return {node.name: node.data for node in chunks.nodes()}


def fetched(data: Mapping[Digest, bytes], wanted: Mapping[Digest, int]) -> dict[Digest, bytes]:
    """Return what a checked read returns: bytes of the right digest, whatever their size."""
    return {name: data[name] for name in wanted}


@pytest.mark.parametrize("count", SIZES)
def test_a_list_is_read_back_from_its_nodes(count: int) -> None:
    digests = simulated(count)
    chunks = ChunkList.of(digests)
    found = read_list(chunks.name, count, lambda wanted: fetched(nodes_of(chunks), wanted))
    assert list(found) == digests
    assert len(found) == len(chunks) == count
    assert (found[0], found[count - 1]) == (digests[0], digests[-1])
    assert [node.name for node in found.nodes()] == [node.name for node in chunks.nodes()]


@pytest.mark.parametrize("count", SIZES)
def test_the_sizes_of_all_nodes_follow_from_the_number_of_chunks(count: int) -> None:
    chunks = ChunkList.of(simulated(count))
    assert len(chunks.root.data) == root_size(count)
    assert sum(1 for _ in chunks.nodes()) == sum(shape(count))
    assert {node.name: digest_of(node.data) for node in chunks.nodes()} == {
        node.name: node.name for node in chunks.nodes()
    }


@settings(max_examples=60, deadline=None)
@given(
    before=st.integers(1, 3 * FAN_OUT),
    after=st.integers(1, 3 * FAN_OUT),
    changed=st.sets(st.integers(0, 3 * FAN_OUT - 1), max_size=9),
)
def test_a_changed_list_is_the_one_that_was_made_anew(before: int, after: int, changed: set[int]) -> None:
    digests = simulated(before)
    changes = {i: chunk(10**6 + i) for i in changed if i < after}
    changes |= {i: chunk(10**6 + i) for i in range(before, after)}
    wanted = [changes.get(i) or digests[i] for i in range(after)]
    found = ChunkList.of(digests).replaced(after, changes)
    assert found.name == ChunkList.of(wanted).name
    assert list(found) == wanted


def test_a_chunk_that_is_in_neither_is_an_error() -> None:
    with pytest.raises(KeyError):
        ChunkList.of(simulated(3)).replaced(5, {4: chunk(9)})


def test_only_nodes_that_are_new_are_looked_at() -> None:
    old = ChunkList.of(simulated(FAN_OUT**2))
    new = old.replaced(FAN_OUT**2, {300: chunk(10**9)})
    known = {node.name for node in old.nodes()}
    assert [node.level for node in new.nodes_outside(known)] == [1, 0]
    assert list(old.nodes_outside(known)) == []
    assert list(old.nodes_outside(set())) == list(old.nodes())


class TestDamage:
    count = FAN_OUT + 3

    def read(self, data: Mapping[Digest, bytes], name: Digest) -> None:
        read_list(name, self.count, lambda wanted: fetched(data, wanted))

    @pytest.mark.parametrize(
        ("at", "value"), [(0, 0x56), (4, 0), (4, 2), (5, 0), (5, 3), (6, 1), (7, 1)], ids=str
    )
    def test_a_header_that_says_something_else_is_refused(self, at: int, value: int) -> None:
        """Such a node has a right digest: somebody made it."""
        chunks = ChunkList.of(simulated(self.count))
        data = bytearray(chunks.root.data)
        data[at] = value
        forged = digest_of(data)
        with pytest.raises(CorruptObject):
            self.read({**nodes_of(chunks), forged: bytes(data)}, forged)

    @pytest.mark.parametrize("cut", [-1, -DIGEST_BYTES, 8])
    def test_a_node_of_another_length_is_refused(self, cut: int) -> None:
        chunks = ChunkList.of(simulated(self.count))
        data = chunks.root.data[:cut]
        with pytest.raises(CorruptObject):
            self.read({**nodes_of(chunks), digest_of(data): data}, digest_of(data))

    def test_a_node_of_another_level_in_its_place_is_refused(self) -> None:
        leaf = Node.of(0, simulated(2))
        assert len(leaf.data) == node_size(2) == root_size(self.count)
        with pytest.raises(CorruptObject, match="level 1"):
            self.read({leaf.name: leaf.data}, leaf.name)

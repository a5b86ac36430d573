"""What a save costs of an array that it hardly changes does not depend on how large the array is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.format.test_chunks import chunk, simulated
from unbroken.errors import CorruptObject
from unbroken.format import layout
from unbroken.format.chunks import FAN_OUT, ChunkList, Node, node_size
from unbroken.format.compression import BlobCodec, Compression
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed, References, all_blobs
from unbroken.repo.encoding import ComponentEncoder
from unbroken.repo.pipeline import Pipeline
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.nodes import Array
from unbroken.state.snapshot import Base, Component, Rows
from unbroken.store.memory import MemoryStore
from unbroken.types import Digest

from .rings import CHUNK, Ring
from .states import assert_sound, meta, noise, process, same, tokens

ROWS = 1 << 18
SMALL, LARGE = 4_000, 400_000
"""1 GB and 100 GB of chunks of 256 KiB."""


@dataclass(frozen=True)
class Save:
    """What one save made and wrote."""

    chunks: int
    nodes: int
    nodes_made: int
    node_bytes: int
    document: int
    named: int
    visited: int


def save(count: int, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Save an array of so many chunks, of which three neighbours have changed."""
    old = ChunkList.of(simulated(count))
    size = count * ROWS
    base = Base(old.name, size, ROWS)
    lists = ChunkLists(BlobIndex(MemoryStore()))
    lists.add(old)
    changed = np.frombuffer(noise(3 * ROWS, 1), np.uint8)
    component = Component(
        name="replay_buffer",
        roots={"buffer": Array(d="|u1", s=(size,), b=0)},
        blobs=[Rows(size, ROWS, ((count // 2 * ROWS, changed),), base)],
    )
    before = Needed()
    before.add(References(frozenset([old.name]), (old,)))
    made: list[int] = []
    make = Node.of.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Node], level: int, children: list[Digest]) -> Node:
        made.append(level)
        node: Node = make(cls, level, children)
        return node

    monkeypatch.setattr(Node, "of", classmethod(counted))
    with Pipeline(Compression(BlobCodec.RAW), lambda digest: digest not in before) as pipeline:
        encoder = ComponentEncoder(component, "json", lists, pipeline, set())
        written = list(encoder.blobs())
        encoded = encoder.finish()
    (new,) = encoded.lists
    nodes = [blob for blob in written if blob.size <= node_size(FAN_OUT)]
    visited = len(list(new.nodes_outside(before.blobs)))
    return Save(
        chunks=len(written) - len(nodes),
        nodes=len(nodes),
        nodes_made=len(made),
        node_bytes=sum(blob.size for blob in nodes),
        document=len(encoded.data),
        named=len(encoded.sizes),
        visited=visited,
    )


def test_an_unchanged_100_gb_costs_what_an_unchanged_gb_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = save(SMALL, monkeypatch), save(LARGE, monkeypatch)
    assert small.chunks == large.chunks == 3
    assert small.named == large.named == 1, "the manifest names the root"
    assert abs(large.document - small.document) <= 10, "digits"
    # One node a level; a hundred times as many chunks make one more level.
    assert (small.nodes, large.nodes) == (2, 3)
    assert small.nodes == small.nodes_made == small.visited
    assert large.nodes == large.nodes_made == large.visited
    assert large.node_bytes <= 2 * node_size(FAN_OUT) + 500


def test_a_run_with_a_ring_writes_the_same_few_bytes_whatever_its_capacity() -> None:
    written: list[int] = []
    for capacity in (2 * FAN_OUT, 8 * FAN_OUT):
        store = MemoryStore()
        repository = Repository.over(store, "job", create=True)
        ring = Ring(capacity, weights=1000)
        with repository.writer(owner=process(1), token=tokens(1)) as writer:
            ring.train(capacity)
            first = ring.changed()
            writer.write(first, meta(1))
            ring.saved(first)
            before = set(store.list())
            ring.train(5)
            writer.write(ring.changed(), meta(2))
        written.append(sum(store.size(key) for key in store.list() if key not in before))
        assert same(repository.load(repository.commits()[0]), ring.whole())
    assert written[0] > 5 * CHUNK
    assert written[1] - written[0] < 500
    assert written[1] < 5 * CHUNK + 2 * node_size(FAN_OUT) + 15_000


def test_after_100_saves_of_a_growing_run_a_prune_leaves_hardly_more_than_what_lives() -> None:
    """A ring that fills up and goes round, weights that all change, small leaves; five checkpoints are kept."""
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    capacity, per_save, weights, kept = 300, 7, 30_000, 5
    ring = Ring(capacity, weights=weights)
    states = {}
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        for step in range(100):
            ring.train(per_save)
            state = ring.changed()
            writer.write(state, meta(step))
            ring.saved(state)
            states[step] = ring.whole()
            writer.retain(plan_retention(repository.commits(), keep_last=kept))
            held = packs_in(store)
            if step > 50:
                assert held < 2.5 * (capacity * CHUNK + kept * (weights + per_save * CHUNK)), "while training"
        writer.prune()
    assert_sound(repository)
    commits = repository.commits()
    assert [commit.step for commit in commits] == [99, 98, 97, 96, 95]
    for commit in commits:
        assert same(repository.load(commit), states[commit.step])
    nodes = kept * 3 * node_size(FAN_OUT)
    live = capacity * CHUNK + (kept - 1) * per_save * CHUNK + kept * weights + nodes
    assert 0.9 * live < packs_in(store) < 1.1 * live


def packs_in(store: MemoryStore) -> int:
    return sum(store.size(key) for key in store.list(layout.PACKS))


def test_what_lists_share_is_needed_once_and_an_array_with_the_bytes_of_a_node_hides_nothing() -> None:
    old = ChunkList.of(simulated(3 * FAN_OUT))
    new = old.replaced(3 * FAN_OUT, {0: chunk(10**9)})
    both = all_blobs([References(frozenset([c.name]), (c,)) for c in (old, new)]).blobs
    assert both == {node.name for c in (old, new) for node in c.nodes()}.union(old, new)
    # A small array whose bytes are those of the root was met before.
    hidden = all_blobs([References(frozenset([old.name])), References(frozenset([old.name]), (old,))]).blobs
    assert hidden == {node.name for node in old.nodes()}.union(old)


def test_a_list_of_another_length_than_its_document_says_is_damage() -> None:
    old = ChunkList.of(simulated(5))
    lists = ChunkLists(BlobIndex(MemoryStore()))
    lists.add(old)
    assert lists.get(old.name, 5) is old
    with pytest.raises(CorruptObject, match="5 chunks, not 6"):
        lists.get(old.name, 6)
    lists.keep([])
    with pytest.raises(CorruptObject):
        lists.get(old.name, 5)

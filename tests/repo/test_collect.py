"""What is deleted, in which groups, what is spared and why, and what finding it out costs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.format.test_chunks import chunk, simulated
from unbroken.errors import Fenced
from unbroken.format import layout
from unbroken.format.chunks import FAN_OUT, ChunkList
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, Needed, References
from unbroken.repo.collect import GcPlan, plan_gc, take_inventory
from unbroken.repo.log import read_log
from unbroken.repo.reader import Reader
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.store.base import ByteStore, Names
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Digest, Epoch, Sequence

from .states import assert_sound, copied, meta, noise, process, snapshot, tokens


class Batching(FaultyStore):
    """Deletes many objects with one request, as a bucket does: all keys are known before the first one goes."""

    def __init__(self, inner: ByteStore) -> None:
        super().__init__(inner)
        self.batches: list[Names] = []

    def delete_all(self, keys: Iterable[str]) -> None:
        """See `SupportsDeleteAll`."""
        batch = list(keys)
        for key in batch:
            self.inner.delete(key)
        if batch:
            self.batches.append(batch)


def saved(store: ByteStore, count: int = 3) -> Repository:
    repository = Repository.over(store, "job", create=True)
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        for step in range(count):
            writer.write(snapshot(noise(500, step), noise(900, 9), step=step), meta(step))
    return repository


def planned(store: ByteStore, *, epoch: int, drop: Iterable[int] = ()) -> GcPlan:
    """Plan what a process of this epoch would delete."""
    index = BlobIndex(store)
    lists = ChunkLists(index)
    index.refresh()
    inventory = take_inventory(
        store, read_log(store), index, lambda commit: Reader(store, index, commit).references(lists)
    )
    return plan_gc(inventory, epoch=Epoch(epoch), drop=[Sequence(number) for number in drop])


def test_a_store_is_asked_once_for_each_group_and_a_group_is_gone_before_the_next() -> None:
    store = Batching(MemoryStore())
    repository = saved(store)
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        store.batches.clear()
        writer.retain(plan_retention(repository.commits(), keep_last=1))
    kinds = [{key.partition("/")[0] for key in batch} for batch in store.batches]
    assert kinds[:3] == [{"commits"}, {"steps"}, {"packs"}]
    assert len(store.batches[0]) == 2
    assert_sound(repository)


def test_whoever_is_overtaken_between_two_keys_hands_none_of_them_on() -> None:
    base = MemoryStore()
    saved(base)

    class Overtaken(Batching):
        looks: int | None = None

        def size(self, key: str) -> int:
            if self.looks is not None and key.startswith(layout.EPOCHS):
                self.looks += 1
                if self.looks == self.at:
                    self.looks = None
                    Repository.over(self.inner, "job").writer(owner=process(3), token=tokens(3))
            return super().size(key)

        at = 0

    for at in range(2, 16):
        store = Overtaken(copied(base))
        repository = Repository.over(store, "job")
        writer = repository.writer(owner=process(2), token=tokens(2))
        plan = plan_retention(repository.commits(), keep_last=1)
        store.batches.clear()
        store.looks, store.at = 0, at
        with pytest.raises(Fenced):
            writer.retain(plan)
        whole = [{key.partition("/")[0] for key in batch} for batch in store.batches]
        assert whole == [{"commits"}, {"steps"}, {"packs"}][: len(whole)]
        assert_sound(Repository.over(store.inner, "job"))


class TestSpared:
    def leftovers(self, epoch: int) -> tuple[MemoryStore, str, str]:
        """Return a run in which a process of this epoch was cut off in a save."""
        store = MemoryStore()
        saved(store)
        key = layout.pack(f"{'f' * 12}e{epoch}")
        document = f"steps/step_000000000009-{'f' * 12}e{epoch}/model.json"
        store.put(key, b"on its way")
        store.put(document, b"{}")
        return store, key, document

    def test_what_our_own_epoch_and_earlier_ones_have_left_goes(self) -> None:
        store, key, document = self.leftovers(1)
        plan = planned(store, epoch=2)
        assert {key, document} <= set(plan.keys)
        assert plan.spared == ()

    def test_what_a_later_epoch_may_be_saving_stays(self) -> None:
        store, key, document = self.leftovers(3)
        plan = planned(store, epoch=2)
        assert plan.keys == ()
        assert {spared.key for spared in plan.spared} == {key, document}
        assert {spared.reason for spared in plan.spared} == {"the process of epoch 3 may still be saving it"}

    def test_where_a_record_cannot_be_read_it_might_need_anything(self) -> None:
        store, key, document = self.leftovers(1)
        record = layout.commit(Sequence(2))
        store.put(record, store.get(record)[:-9])
        plan = planned(store, epoch=2)
        assert plan.needed is None
        assert {key, document} <= {spared.key for spared in plan.spared}
        assert {spared.reason for spared in plan.spared} == {"a checkpoint that cannot be read may need it"}

    def test_a_name_that_nobody_here_gives_stays(self) -> None:
        store, _, _ = self.leftovers(1)
        store.put(layout.pack("foreign"), b"")
        (spared,) = planned(store, epoch=2).spared
        assert (spared.key, spared.reason) == (layout.pack("foreign"), "not of a writer that is known here")


def test_a_pack_whose_index_is_listed_late_is_no_leftover() -> None:
    """It may be what an overtaken compaction has written, and all that is left when its last call arrives."""
    base = MemoryStore()
    repository = saved(base)
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        writer.retain(plan_retention(repository.commits(), keep_last=2))
    store = copied(base)
    counting = FaultyStore(copied(base))
    with Repository.over(counting, "job").writer(owner=process(3), token=tokens(3)) as writer:
        writer.prune()
    (written, *_) = [found.key for found in counting.operations if found.key.endswith("e3.pack")]
    at = next(
        number
        for number, found in enumerate(counting.operations)
        if found.name == "delete" and found.key.startswith(layout.PACKS)
    )
    cut_off = FaultyStore(store, fault=Fault(Kind.STOP_BEFORE, at))
    with pytest.raises(Stopped):
        Repository.over(cut_off, "job").writer(owner=process(3), token=tokens(3)).prune()

    class Late(FaultyStore):
        def list(self, prefix: str = "") -> Names:
            return [key for key in super().list(prefix) if key != written.replace(".pack", ".idx")]

    assert written in store.list()
    assert written not in planned(Late(store), epoch=4).packs
    store.delete(written.replace(".pack", ".idx"))
    assert written in planned(Late(store), epoch=4).packs, "without an index it is a leftover"


def test_the_cost_of_what_checkpoints_share_is_paid_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, saves = 100 * FAN_OUT, 50
    lists = [ChunkList.of(simulated(count))]
    for number in range(1, saves):
        lists.append(lists[-1].replaced(count, {number: chunk(10**9 + number)}))
    visited: list[Digest] = []
    walk = ChunkList.nodes_outside

    def counted(self: ChunkList, known: set[Digest]) -> Iterable[object]:
        for node in walk(self, known):
            visited.append(node.name)
            yield node

    monkeypatch.setattr(ChunkList, "nodes_outside", counted)
    needed = Needed()
    for one in lists:
        needed.add(References(frozenset([one.name]), (one,)))
    assert len(visited) == 101 + 2 * (saves - 1), (
        "all nodes once, and two for each save that changed one chunk"
    )
    assert needed.blobs == {name for one in lists for name in (*one, *(node.name for node in one.nodes()))}


def test_the_plan_in_words() -> None:
    store = MemoryStore()
    saved(store)
    plan = planned(store, epoch=2, drop=[1, 2])
    assert str(plan) == "delete 2 commits, 10 documents, 1 packs"
    assert plan.low_water == 3

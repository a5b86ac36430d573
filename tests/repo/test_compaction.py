"""Packs that are mostly dead are replaced: planned, crashed at every call, damaged, overtaken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.errors import Fenced, StoreError
from unbroken.format import layout
from unbroken.format.compression import BlobCodec
from unbroken.format.digest import digest_of
from unbroken.format.pack import PackEntry, PackIndex
from unbroken.repo import compaction
from unbroken.repo.ballast import free_bytes
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.compaction import WHOLE, CompactionPlan, Effort, plan_compaction
from unbroken.repo.encoding import PACK_BYTES
from unbroken.repo.packsize import pack_bytes
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Digest, Epoch

from .states import (
    Interrupted,
    assert_sound,
    assert_swept,
    copied,
    meta,
    noise,
    process,
    same,
    snapshot,
    tokens,
)

HALF = Effort(least_dead=0.5)


def blob(name: str) -> Digest:
    return digest_of(name.encode())


def pack_of(number: int, blobs: str, *, epoch: int, length: int = 1000) -> PackIndex:
    """Return the index of a pack that holds a blob for each letter."""
    entries = [
        PackEntry(blob(letter), 16 + i * (length + 64), BlobCodec.RAW, length, length, 0)
        for i, letter in enumerate(blobs)
    ]
    return PackIndex(pack=f"{number:012x}e{epoch}", entries=entries)


def plan(
    *packs: PackIndex,
    needed: str,
    effort: Effort = HALF,
    epoch: int = 2,
    condemned: tuple[str, ...] = (),
    damaged: str = "",
) -> CompactionPlan:
    return plan_compaction(
        {index.pack: index for index in packs},
        {blob(letter) for letter in needed},
        effort,
        epoch=Epoch(epoch),
        condemned=condemned,
        damaged={blob(letter) for letter in damaged},
    )


class TestPlan:
    def test_a_pack_goes_when_more_than_half_of_it_is_dead(self) -> None:
        dead, half, whole = (
            pack_of(1, "abcd", epoch=2),
            pack_of(2, "efgh", epoch=2),
            pack_of(3, "xy", epoch=2),
        )
        (step,) = plan(dead, half, whole, needed="aefxy").steps
        assert step.packs == (dead.pack,)
        assert step.blobs == (blob("a"),)
        assert step.freed > 4 * 1064 > step.written > 1064

    def test_what_is_gathered_makes_one_pack(self) -> None:
        first, second = pack_of(1, "abcd", epoch=1), pack_of(2, "efgh", epoch=2)
        (step,) = plan(first, second, needed="ae").steps
        assert set(step.packs) == {first.pack, second.pack}
        assert set(step.blobs) == {blob("a"), blob("e")}

    def test_it_is_bounded_and_takes_the_deadest_first(self) -> None:
        packs = pack_of(1, "abcde", epoch=2), pack_of(2, "fghijklmno", epoch=2)
        found = plan(*packs, needed="abfg", effort=Effort(0.5, most_bytes=2 * 1064))
        assert found.packs == (packs[1].pack,)
        assert plan(*packs, needed="abfg", effort=Effort(0.5, most_bytes=1063)).steps == ()

    def test_one_pack_is_not_made_larger_than_a_pack_may_be(self) -> None:
        size = PACK_BYTES * 2 // 3
        found = plan(
            pack_of(1, "abc", epoch=2, length=size), pack_of(2, "def", epoch=2, length=size), needed="ad"
        )
        assert [len(step.packs) for step in found.steps] == [1, 1]

    def test_a_copy_of_an_earlier_epoch_is_not_relied_on(self) -> None:
        """Its writer was overtaken in a compaction: it may still delete the one, and we must not keep only that."""
        old, copy = pack_of(1, "abcd", epoch=1), pack_of(2, "a", epoch=1)
        (step,) = plan(old, copy, needed="a").steps
        assert step.blobs == (blob("a"),)
        assert set(step.packs) == {old.pack, copy.pack}

    def test_a_copy_of_this_epoch_is(self) -> None:
        old, copy = pack_of(1, "abcd", epoch=1), pack_of(2, "a", epoch=2)
        (step,) = plan(old, copy, needed="a").steps
        assert (step.blobs, step.packs, step.written) == ((), (old.pack,), 0)

    def test_not_if_its_deletion_was_begun(self) -> None:
        old, copy = pack_of(1, "abcd", epoch=1), pack_of(2, "a", epoch=2)
        (step,) = plan(old, copy, needed="a", condemned=(copy.pack,)).steps
        assert step.blobs == (blob("a"),)
        assert set(step.packs) == {old.pack, copy.pack}

    def test_of_two_that_hold_the_same_one_stays(self) -> None:
        one, other = pack_of(1, "ab", epoch=2), pack_of(2, "ab", epoch=2)
        (step,) = plan(one, other, needed="ab").steps
        assert (step.blobs, len(step.packs)) == ((), 1)

    def test_packs_of_later_epochs_and_of_strangers_stay(self) -> None:
        stranger = PackIndex(pack="stranger", entries=pack_of(1, "abcd", epoch=1).entries)
        assert plan(pack_of(1, "abcd", epoch=3), stranger, needed="a").steps == ()

    def test_a_pack_with_a_damaged_blob_that_lives_is_left_alone(self) -> None:
        packs = pack_of(1, "abcd", epoch=2), pack_of(2, "efgh", epoch=2)
        assert plan(*packs, needed="ae", damaged="a").packs == (packs[1].pack,)
        assert len(plan(*packs, needed="ae", damaged="b").packs) == 2, "a dead one is nobody's loss"


def mostly_dead(store: ByteStore, *, life: int = 1) -> Repository:
    """Make a run whose first pack holds a buffer that every checkpoint needs, among much that no one does."""
    repository = Repository.over(store, "job", create=True)
    with repository.writer(owner=process(life), token=tokens(life)) as writer:
        for step in range(4):
            writer.write(contents(step), meta(step))
    return repository


def contents(step: int) -> Snapshot:
    return snapshot(noise(20_000, step), noise(1000, 99), step=step)


def prune(repository: Repository, *, life: int = 2) -> compaction.Compacted:
    with repository.writer(owner=process(life), token=tokens(life)) as writer:
        return writer.prune(plan_retention(repository.commits(), keep_last=1))[1]


def held(store: ByteStore) -> int:
    return sum(store.size(key) for key in store.list(layout.PACKS))


def test_a_pack_that_is_mostly_dead_is_replaced_and_everything_loads() -> None:
    store = MemoryStore()
    repository = mostly_dead(store)
    (newest, *_) = repository.commits()
    assert held(store) > 80_000
    done = prune(repository)
    assert (len(done.packs), done.faults, done.missing_room) == (1, [], 0)
    assert held(store) < 23_000
    assert repository.commits() == [newest]
    assert same(repository.load(newest), contents(3))
    assert_sound(Repository.over(store, "job"))
    assert_swept(Repository.over(store, "job"))


def test_the_bytes_of_a_plan_are_those_on_the_disk() -> None:
    store = MemoryStore()
    repository = mostly_dead(store)
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        writer.sweep()
    index = BlobIndex(store)
    index.refresh()
    assert sum(map(pack_bytes, index.packs.values())) == held(store)


def test_a_save_compacts_what_is_more_than_half_dead() -> None:
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    with repository.writer(token=tokens(1)) as writer:
        for step in range(6):
            writer.write(contents(step), meta(step))
            writer.retain(plan_retention(repository.commits(), keep_last=1))
            assert held(store) < 2 * 24_000
            assert same(repository.load(repository.commits()[0]), contents(step))
        # what was moved is built on
        before = held(store)
        writer.write(contents(5), meta(9))
        assert held(store) - before < 1000


def test_a_reader_that_looks_in_between_does_not_cast_doubt_on_what_was_moved() -> None:
    store = MemoryStore()
    repository = mostly_dead(store)
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        assert_sound(repository)
        writer.prune(plan_retention(repository.commits(), keep_last=1))
        assert_sound(repository)
        before = held(store)
        writer.write(contents(3), meta(7))
        assert held(store) - before < 1000, "nothing is written anew"


def test_a_reader_in_the_middle_finds_what_has_moved() -> None:
    store = MemoryStore()
    repository = mostly_dead(store)
    (newest, *_) = repository.commits()
    moved: list[int] = []

    class Moving(FaultyStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            if not moved:
                moved.append(len(prune(Repository.over(store, "job")).packs))
            return super().get_range(key, offset, length)

    assert same(Repository.over(Moving(store), "job").load(newest), contents(3))
    assert moved == [1]


STOPS = [Kind.STOP_BEFORE, Kind.STOP_AFTER, Kind.TORN]


def crashes(kind: Kind) -> Iterator[tuple[MemoryStore, FaultyStore, int]]:
    """Yield for each k a store and, around it, the one that fails at the k-th change of a prune."""
    base = MemoryStore()
    mostly_dead(base)
    counting = FaultyStore(copied(base))
    assert prune(Repository.over(counting, "job")).packs
    names = [operation.key.rpartition(".")[2] for operation in counting.operations]
    assert names.count("pack") >= 4, "one is written, three die and one is replaced"
    for at in range(len(counting.operations)):
        store = copied(base)
        yield store, FaultyStore(store, fault=Fault(kind, at)), at


@pytest.mark.parametrize("kind", STOPS)
def test_a_process_that_stops_anywhere_in_a_prune_loses_nothing(kind: Kind) -> None:
    for store, faulty, _ in crashes(kind):
        with pytest.raises(Stopped):
            prune(Repository.over(faulty, "job"))
        repository = Repository.over(store, "job")
        assert_sound(repository)
        assert same(repository.load(repository.commits()[0]), contents(3))
        prune(repository, life=3)
        assert_sound(repository)
        assert_swept(repository)
        assert held(store) < 23_000, f"what was left twice is gone, after {faulty.operations[-1]}"


@pytest.mark.filterwarnings("ignore::unbroken.repo.saves.SaveRecordWarning")  # one failure is of a record
@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.LOST_RESPONSE, Kind.FULL])
def test_a_store_that_fails_once_anywhere_in_a_prune_loses_nothing(kind: Kind) -> None:
    """And the same process goes on: what it has begun to delete it does not rely on."""
    for store, faulty, at in crashes(kind):
        repository = Repository.over(faulty, "job")
        with contextlib.suppress(StoreError), repository.writer(owner=process(2), token=tokens(2)) as writer:
            with contextlib.suppress(StoreError):
                writer.prune(plan_retention(repository.commits(), keep_last=1))
            if kind is Kind.FULL:
                continue
            content = snapshot(noise(20_000, 7), noise(1000, 99), step=7)
            commit = writer.write(content, meta(7))
            failed = faulty.operations[at]
            if failed.name == "delete" and failed.key.startswith(layout.PACKS):
                store.delete(failed.key)  # carried out after all
            assert same(Repository.over(store, "job").load(commit), content)
        assert_sound(Repository.over(store, "job"))


def test_an_overtaken_compaction_takes_nothing_with_it() -> None:
    """At each change of a prune another process takes over and prunes, too; then the sleeper's call arrives."""
    base = MemoryStore()
    mostly_dead(base)
    counting = FaultyStore(copied(base))
    prune(Repository.over(counting, "job"))
    for at in range(len(counting.operations)):
        for before in (True, False):
            store = copied(base)

            def take_over(store: MemoryStore = store) -> None:
                prune(Repository.over(store, "job"), life=3)

            def now(number: int, _name: str, _key: str, at: int = at) -> bool:
                return number == at

            sleeper = Interrupted(store, take_over, before=before, when=now)
            with contextlib.suppress(Fenced, StoreError):
                prune(Repository.over(sleeper, "job"))
            assert sleeper.event is None
            repository = Repository.over(store, "job")
            assert_sound(repository)
            prune(repository, life=4)
            assert_sound(repository)
            assert held(store) < 23_000


def test_damage_is_not_copied_and_its_pack_is_left_alone() -> None:
    store = MemoryStore()
    repository = mostly_dead(store)
    newest = repository.commits()[0]
    first = min(store.list(layout.PACKS))
    assert first.endswith(".idx")
    key = first.replace(".idx", ".pack")
    index = BlobIndex(store)
    index.refresh()
    shared = digest_of(noise(1000, 99))
    (place,) = index.places(shared)
    data = bytearray(store.get(layout.pack(place.pack)))
    data[place.entry.offset + 64 + 500] ^= 1
    store.put(layout.pack(place.pack), bytes(data))
    before = set(store.list(layout.PACKS))
    done = prune(repository)
    assert [fault.digest for fault in done.faults] == [shared]
    assert done.faults[0].key == layout.pack(place.pack)
    assert done.packs == []
    assert key in store.list()
    assert set(store.list(layout.PACKS)) < before, "and nothing half-made is left"
    (fault,) = Repository.over(store, "job").verify(newest)
    assert fault.digest == shared
    # The next save that has the contents writes them anew; then the pack can go.
    with repository.writer(owner=process(3), token=tokens(3)) as writer:
        repository.verify(newest)
        writer.write(contents(3), meta(8))
        assert place.pack in writer.prune()[1].packs
    assert_sound(Repository.over(store, "job"))


def test_without_room_it_leaves_everything_as_it_is_and_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    mostly_dead(repository.store)
    index = BlobIndex(repository.store)
    index.refresh()
    newest = repository.commits()[0]
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        before = repository.store.list(layout.PACKS)
        claim = writer.checkpoints.pen.claim
        kept = {Digest(d) for d in repository.manifest(newest).blobs}
        done = compaction.compact(index, kept, WHOLE, claim=claim, token=tokens(5), free=lambda store: 500)
        assert 1000 < done.missing_room < 30_000
        assert repository.store.list(layout.PACKS) == before
    assert free_bytes(repository.store)
    assert free_bytes(MemoryStore()) is None


def test_whoever_gets_the_pen_knows_what_was_begun_to_be_deleted() -> None:
    """The deletion of a pack is carried out after all, when another writes under the same epoch."""
    base = MemoryStore()
    mostly_dead(base)
    counting = FaultyStore(copied(base))
    prune(Repository.over(counting, "job"))
    (at,) = [
        number
        for number, operation in enumerate(counting.operations)
        if operation.name == "delete" and operation.key.endswith(".pack")
    ][-1:]
    store = copied(base)
    faulty = FaultyStore(store, fault=Fault(Kind.UNAVAILABLE, at))
    repository = Repository.over(faulty, "job")
    with repository.writer(owner=process(2), token=tokens(2)) as run:
        with pytest.raises(StoreError):
            run.prune(plan_retention(repository.commits(), keep_last=1))
        late = faulty.operations[at].key
        assert late in store.list()
        pen = run.lend()
        assert layout.pack_name(late) in pen.condemned
        index = BlobIndex(store, condemned=pen.condemned)
        index.refresh()
        assert index.condemned is pen.condemned
        store.delete(late)
        commit = run.write(contents(3), meta(9))
    assert same(Repository.over(store, "job").load(commit), contents(3))

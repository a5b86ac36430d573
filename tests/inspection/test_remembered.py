"""A store for looking only: what it keeps, for how long, and of which run."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.repo.states import meta, snapshot, tokens
from unbroken.errors import InternalError, ObjectMissing
from unbroken.inspection.remembered import ENTRY, LARGEST, SECONDS, SHORT, Memory, Remembered
from unbroken.repo.repository import Repository
from unbroken.store.memory import MemoryStore


class Counting(MemoryStore):
    """Counts how often each object was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.ranges: list[str] = []

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        return super().get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = super().get_range(key, offset, length)
        self.ranges.append(key)
        return data


def written(store: MemoryStore, *steps: int, seed: int = 0) -> Repository:
    repository = Repository.over(store, "run", create=True)
    with repository.writer(token=tokens(seed)) as writer:
        for step in steps:
            writer.write(snapshot(step=step), meta(step))
    return repository


def test_what_never_changes_is_read_once() -> None:
    store, memory = Counting(), Memory()
    written(store, 1, 2)
    for _ in range(3):
        store.asked.clear()
        repository = Repository.over(Remembered(store, "place", memory), "run")
        commits = repository.commits()
        assert [commit.step for commit in commits] == [2, 1]
        assert repository.meta(commits[0]).step == 2
    there = {key for key in store.list() if key.startswith(("commits/", "steps/"))}
    assert there
    assert there.isdisjoint(store.asked)


def test_another_run_under_the_same_name_is_read_anew() -> None:
    store, memory = Counting(), Memory()
    written(store, 1)
    assert Repository.over(Remembered(store, "place", memory), "run").commits()[0].step == 1
    for key in store.list():
        store.delete(key)
    written(store, 7, seed=9)
    assert Repository.over(Remembered(store, "place", memory), "run").commits()[0].step == 7


def test_two_runs_are_not_taken_for_each_other() -> None:
    one, other, memory = Counting(), Counting(), Memory()
    written(one, 1)
    for key in one.list():
        other.put(key, one.get(key))
    written(other, 2)
    assert Repository.over(Remembered(one, "one", memory), "run").commits()[0].step == 1
    assert Repository.over(Remembered(other, "other", memory), "run").commits()[0].step == 2


def test_damage_beside_a_checkpoint_is_seen_after_a_while() -> None:
    now = 100.0
    store, memory = Counting(), Memory(clock=lambda: now)
    (commit,) = written(store, 1).commits()
    looking = Remembered(store, "place", memory)
    assert Repository.over(looking, "run").meta(commit).step == 1
    store.delete(f"{commit.directory}/meta.json")
    assert looking.get(f"{commit.directory}/meta.json")
    now += SECONDS + 1
    with pytest.raises(ObjectMissing):
        looking.get(f"{commit.directory}/meta.json")


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    store, memory = Counting(), Memory(most=2 * (ENTRY + 101) + 49)
    for n in range(5):
        store.put(f"commits/{n:010d}.json", b"x" * 100)
    looking = Remembered(store, "place", memory)
    for n in range(5):
        looking.get(f"commits/{n:010d}.json")
    store.asked.clear()
    looking.get("commits/0000000004.json")
    looking.get("commits/0000000003.json")
    assert store.asked == []
    looking.get("commits/0000000000.json")
    assert store.asked == ["commits/0000000000.json"]


def test_large_objects_and_those_that_change_are_not_kept() -> None:
    store, memory = Counting(), Memory()
    store.put("steps/a/replay.json", b"x" * (LARGEST + 1))
    store.put("lease.json", b"{}")
    looking = Remembered(store, "place", memory)
    for key in ("steps/a/replay.json", "lease.json"):
        looking.get(key)
        looking.get(key)
        assert store.asked.count(key) == 2


def test_the_ends_of_a_pack_are_kept_for_a_while_and_what_is_longer_is_not() -> None:
    now = 100.0
    store, memory = Counting(), Memory(clock=lambda: now)
    store.put("packs/a.pack", bytes(range(256)) * 1_024)
    store.put("other.pack", b"0123456789")
    looking = Remembered(store, "place", memory)
    for _ in range(2):
        assert looking.get_range("packs/a.pack", 0, 4) == b"\0\1\2\3"
        assert looking.get_range("packs/a.pack", 1, 4) == b"\1\2\3\4"
        assert looking.get_range("packs/a.pack", 1, 3) == b"\1\2\3"
    assert store.ranges == ["packs/a.pack"] * 3
    for _ in range(2):
        assert len(looking.get_range("packs/a.pack", 0, SHORT + 1)) == SHORT + 1
        assert looking.get_range("other.pack", 2, 3) == b"234"
    assert store.ranges == ["packs/a.pack"] * 3 + ["packs/a.pack", "other.pack"] * 2
    store.put("packs/a.pack", b"damaged")
    assert looking.get_range("packs/a.pack", 0, 4) == b"\0\1\2\3"
    now += SECONDS + 1
    assert looking.get_range("packs/a.pack", 0, 4) == b"dama"
    with pytest.raises(ObjectMissing):
        looking.get_range("packs/b.pack", 0, 4)


def test_several_are_fetched_together_and_what_is_missing_is_left_out() -> None:
    store, memory = Counting(), Memory()
    keys = [f"commits/{n:010d}.json" for n in range(40)]
    for key in keys[:-1]:
        store.put(key, b"{}")
    looking = Remembered(store, "place", memory)
    looking.get_all(keys)
    store.asked.clear()
    for key in keys[:-1]:
        looking.get(key)
    assert store.asked == []
    with pytest.raises(ObjectMissing):
        looking.get(keys[-1])


def test_nothing_can_be_written_through_it() -> None:
    store = MemoryStore()
    looking = Remembered(store, "place", Memory())
    for write in (
        lambda: looking.put("a", b""),
        lambda: looking.put_if_absent("a", b""),
        lambda: looking.delete("a"),
    ):
        with pytest.raises(InternalError):
            write()
    assert store.list() == []


def test_it_lists_as_the_store_does() -> None:
    store = MemoryStore()
    written(store, 1)
    looking = Remembered(store, "place", Memory())
    assert looking.list() == store.list()
    assert looking.children() == sorted({key.partition("/")[0] for key in store.list()})
    assert looking.taken("commits") == ["0000000001.json"]
    assert looking.taken() == looking.list()
    key = store.list("commits")[0]
    assert looking.size(key) == store.size(key) == len(looking.get(key))
    assert looking.get_range(key, 1, 5) == store.get(key)[1:6]
    assert looking.on_disk() is None


def test_memory_is_bounded_whatever_is_kept_in_it() -> None:
    """Of empty objects, too: their keys, and what keeping one takes, count."""
    most = 1 << 20
    run = b"r" * 32
    tracemalloc.start()
    try:
        memory = Memory(most=most)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            memory.keep(run, f"steps/step_{number:012d}/meta.json", b"")
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1.5 * most
    assert memory.get(run, f"steps/step_{19_999:012d}/meta.json") == b""
    assert memory.get(run, f"steps/step_{0:012d}/meta.json") is None

"""Saves of two ranks: interrupted at every operation of each, on stores that fail, and tidied up."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from unbroken.errors import RankMissing, ReplicasDiffer, SaveFailed, StoreUnavailable, UnbrokenError
from unbroken.format import layout, ranks
from unbroken.format.buffers import Content
from unbroken.format.ranks import Hello, Outcome, RankRecord, SaveOrder
from unbroken.repo import fencing, names
from unbroken.repo.coordinator import Coordinator
from unbroken.repo.rendezvous import read
from unbroken.repo.repository import Repository
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Epoch, Step, WriteId

from .parties import KEY, SECONDS, Parties, Time, View, assert_each_whole_and_of_one_step, at_once, state
from .states import assert_swept, copied, meta, noise, process, snapshot, tokens


def trained() -> MemoryStore:
    """Return a run of two ranks with the checkpoints of the steps 1 and 2."""
    store = MemoryStore()
    parties = Parties(store)
    assert parties.begin() == [None, None]
    for step in (1, 2):
        assert parties.save(step) == [None, None]
    return store


@pytest.fixture(scope="module")
def base() -> MemoryStore:
    return trained()


def second_life(first: FaultyStore | MemoryStore, second: FaultyStore | MemoryStore) -> list[object]:
    """Let both ranks take the run and save step 3; return what came of it, last of each."""
    parties = Parties(first, second, seed=2)
    begun = parties.begin()
    return begun if begun != [None, None] else parties.save(3)


def operations(base: MemoryStore, rank: int) -> int:
    store = copied(base)
    counting = FaultyStore(store)
    assert second_life(*((counting, store) if rank == 0 else (store, counting))) == [None, None]
    return len(counting.operations)


@pytest.mark.parametrize("kind", [Kind.STOP_BEFORE, Kind.STOP_AFTER, Kind.TORN])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stops_anywhere_loses_nothing_and_nothing_gets_mixed(
    base: MemoryStore, kind: Kind, rank: int
) -> None:
    count = operations(base, rank)
    assert count > 5
    for at in range(count):
        store = copied(base)
        faulty = FaultyStore(store, fault=Fault(kind, at))
        results = second_life(*((faulty, store) if rank == 0 else (store, faulty)))
        if not faulty.fired:
            continue  # how often a rank says hello depends on who comes first
        assert isinstance(results[rank], Stopped), (at, results)
        steps = assert_each_whole_and_of_one_step(store)
        assert steps in ([2, 1], [3, 2, 1], [3, 2])
        # The next start goes on from there, saves, and sweeps what is left of this.
        again = Parties(store, seed=3)
        assert again.begin() == [None, None], (at, kind)
        assert again.save(4) == [None, None], (at, kind)
        assert assert_each_whole_and_of_one_step(store) == [4, steps[0]]
        if not Repository.over(store, "job").broken():  # what half a commit record may need stays
            assert_swept(Repository.over(store, "job"))


@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.LOST_RESPONSE])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_fails_once_anywhere_costs_at_most_one_save(
    base: MemoryStore, kind: Kind, rank: int
) -> None:
    for at in range(operations(base, rank)):
        store = copied(base)
        faulty = FaultyStore(store, fault=Fault(kind, at))
        parties = Parties(*((faulty, store) if rank == 0 else (store, faulty)), seed=2)
        if parties.begin() != [None, None]:
            assert assert_each_whole_and_of_one_step(store) == [2, 1]
            continue
        results = parties.save(3)
        steps = assert_each_whole_and_of_one_step(store)
        assert steps in ([2, 1], [3, 2, 1], [3, 2])
        for result in results:
            assert result is None or isinstance(result, UnbrokenError)
        if not faulty.fired:
            continue
        assert parties.save(4) == [None, None], (at, kind, results)
        assert assert_each_whole_and_of_one_step(store)[0] == 4
        parties.save(5)
        assert_swept(Repository.over(store, "job"))


def test_an_answer_to_a_word_that_is_lost_is_found_by_reading_it_again(base: MemoryStore) -> None:
    """Of every create-only record it is known afterwards that it is there."""
    for rank in range(2):
        store = copied(base)
        counting = FaultyStore(store)
        second_life(*((counting, store) if rank == 0 else (store, counting)))
        words = [i for i, done in enumerate(counting.operations) if done.name == "put_if_absent"]
        assert words
        for at in words:
            store = copied(base)
            faulty = FaultyStore(store, fault=Fault(Kind.LOST_RESPONSE, at))
            results = second_life(*((faulty, store) if rank == 0 else (store, faulty)))
            if not faulty.fired or faulty.operations[at].name != "put_if_absent":
                continue  # how often a rank says hello depends on who comes first
            assert results == [None, None], faulty.operations[at]
            assert assert_each_whole_and_of_one_step(store) == [3, 2]


class Lagging(MemoryStore):
    """Lists what was written only some listings later; what is asked for by its name is there at once."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self._lag = lag
        self._hidden: dict[str, int] = {}

    def put(self, key: str, data: object) -> None:
        super().put(key, data)  # type: ignore[arg-type]
        self._hidden[key] = self._lag

    def put_if_absent(self, key: str, data: object) -> bool:
        written = super().put_if_absent(key, data)  # type: ignore[arg-type]
        if written:
            self._hidden[key] = self._lag
        return written

    def list(self, prefix: str = "") -> list[str]:
        found = []
        for key in super().list(prefix):
            left = self._hidden.get(key, 0)
            self._hidden[key] = max(0, left - 1)
            if not left:
                found.append(key)
        return found


def test_listings_that_lag_behind_cost_time_and_nothing_else() -> None:
    store = Lagging(3)
    parties = Parties(store)
    assert parties.begin() == [None, None]
    for step in range(1, 6):
        assert parties.save(step) == [None, None]
    for _ in range(4):
        store.list()
    assert assert_each_whole_and_of_one_step(store)[0] == 5


# What is kept and what goes


def test_after_many_saves_nothing_is_missing_and_nothing_is_left_over() -> None:
    store = MemoryStore()
    parties = Parties(store)
    assert parties.begin() == [None, None]
    for step in range(1, 12):
        assert parties.save(step) == [None, None]
        assert assert_each_whole_and_of_one_step(store) == [step, step - 1][: min(step, 2)]
        assert_swept(Repository.over(store, "job"))
    assert len(store.list("ranks")) < 20  # words of the last saves, not of all


def test_words_of_former_starts_are_swept() -> None:
    store = trained()
    for seed in range(2, 6):
        parties = Parties(store, seed=seed)
        assert parties.begin() == [None, None]
        assert parties.save(seed + 1) == [None, None]
    assert {key.split("/")[1] for key in store.list("ranks")} == {f"{5:010d}"}


# Orders


def test_an_old_order_is_answered_by_a_refusal_and_only_the_new_one_counts() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    parties.time.over.set()  # rank 0 does not wait: its first save fails
    with pytest.raises(RankMissing, match="rank 1 said nothing"):
        writer.checkpoints.write(state(0, 1), meta(1))
    assert parties.save(2) == [None, None]  # rank 1 comes to the order of step 1 first
    assert assert_each_whole_and_of_one_step(store) == [2]
    assert_swept(Repository.over(store, "job"))


def test_a_rank_that_answers_an_old_order_late_has_no_part_in_the_next_save() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    parties.time.over.set()
    with pytest.raises(RankMissing):
        writer.checkpoints.write(state(0, 1), meta(1))
    # Now rank 1 writes all of its part for that order, and hears that there will be no checkpoint.
    with pytest.raises(SaveFailed, match="rank 1 said nothing"):
        follower.checkpoints.write(state(1, 1), meta(1))
    old = {key for key in store.list(layout.STEPS) if "@rank1" in key}
    assert old
    assert parties.save(2) == [None, None]
    repository = Repository.over(store, "job")
    assert assert_each_whole_and_of_one_step(store) == [2]
    assert not old & set(store.list(layout.STEPS))
    assert_swept(repository)


def test_a_rank_that_is_ahead_says_so_and_rank_0_does_not_wait_for_it() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    results = at_once(
        lambda: writer.checkpoints.write(state(0, 1), meta(1)),
        lambda: follower.checkpoints.write(state(1, 2), meta(2)),
        time_of=parties.time,
    )
    assert isinstance(results[0], RankMissing)
    assert results[0].ranks == (1,)
    assert "it has gone on to step 2 without step 1" in str(results[0])
    assert isinstance(results[1], RankMissing)  # nobody saves step 2 with it
    assert Repository.over(store, "job").commits() == []


def test_an_order_that_comes_late_is_not_answered_with_a_later_moment_of_the_same_step() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    parties.time.over.set()
    with pytest.raises(RankMissing, match="Rank 0 did not begin to save step 1"):
        follower.checkpoints.write(state(1, 7), meta(1))

    def late() -> None:
        with pytest.raises(RankMissing, match="Rank 1 has not written its part: it has gone on"):
            writer.checkpoints.write(state(0, 7), meta(1))
        writer.checkpoints.write(state(0, 1), meta(1))

    results = at_once(late, lambda: follower.checkpoints.write(state(1, 1), meta(1)), time_of=parties.time)
    assert results == [None, None]
    assert assert_each_whole_and_of_one_step(store) == [1]


def test_a_save_that_rank_0_has_declined_is_not_the_next_one_of_the_same_step() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    assert writer.coordinator is not None
    writer.coordinator.decline(meta(1), SaveFailed("no room"))
    with pytest.raises(SaveFailed, match="no room"):
        follower.checkpoints.write(state(1, 1), meta(1))
    assert parties.save(1) == [None, None]
    assert assert_each_whole_and_of_one_step(store) == [1]


def test_replicas_that_differ_leave_nothing_committed_and_the_next_save_works() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    parties.save(1)
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    other = bytearray(noise(4000, 2))
    other[1234] ^= 1
    results = at_once(
        lambda: writer.checkpoints.write(state(0, 2), meta(2)),
        lambda: follower.checkpoints.write(snapshot(bytes(other), noise(6000, 1002), step=3), meta(2)),
        time_of=parties.time,
    )
    for result in results:
        assert isinstance(result, ReplicasDiffer)
        [line] = result.differences
        assert line.startswith("rank 1: policy_weights: model/policy/w: ")
    assert assert_each_whole_and_of_one_step(store) == [1]
    assert parties.save(3) == [None, None]
    assert assert_each_whole_and_of_one_step(store) == [3, 1]
    assert_swept(Repository.over(store, "job"))


def test_a_rank_that_cannot_write_says_why_at_once() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, fault=Fault(Kind.FULL, 2))
    parties = Parties(store, faulty)
    assert parties.begin() == [None, None]
    results = parties.save(1)
    assert isinstance(results[0], RankMissing), results
    assert results[0].ranks == (1,)


def test_the_record_of_a_save_is_told_to_all() -> None:
    store = MemoryStore()
    parties = Parties(store)
    parties.begin()
    parties.save(1)
    place = f"ranks/{1:010d}/saves/{1:010d}"
    order, outcome = (
        read(store, f"{place}/order.json", SaveOrder),
        read(store, f"{place}/outcome.json", Outcome),
    )
    assert order is not None
    assert outcome is not None
    commit = Repository.over(store, "job").commits()[0]
    assert (order.write_id, outcome.sequence) == (commit.write_id, commit.sequence)
    assert commit.epoch == Epoch(1)
    meta_ = Repository.over(store, "job").meta(commit)
    assert set(meta_.fidelity) == {"policy_weights", "replay_buffer@rank0", "replay_buffer@rank1"}
    assert [status["rank"] for status in meta_.worker_status] == [0, 1]


def test_what_is_asked_of_a_store_that_is_gone_is_an_error_of_the_store() -> None:
    parties = Parties(MemoryStore(), FaultyStore(MemoryStore(), fault=Fault(Kind.UNAVAILABLE, 0)))
    results = parties.begin()
    assert isinstance(results[1], (StoreUnavailable, RankMissing))


@pytest.mark.parametrize(("second", "valid"), [(KEY, True), (b"o" * 32, False)], ids=["same", "another"])
def test_a_manifest_is_signed_for_what_other_ranks_pickled_only_under_the_same_key(
    second: bytes, *, valid: bool
) -> None:
    store = MemoryStore()
    parties = Parties(store, keys=(KEY, second), opaque=True)
    assert parties.begin() == [None, None]
    assert parties.save(1) == [None, None]
    repository = Repository.over(store, "job")
    (commit,) = repository.commits()
    assert repository.manifest(commit).opaque == ["model/callback"]
    assert repository.signature_valid(commit, key=KEY) is valid


# Words that belong to something else, and words that do not come


def alone_of(size: int) -> tuple[MemoryStore, Coordinator]:
    """Return rank 0 of so many, of which no other is there, in a time that passes."""
    store, time = MemoryStore(), Time()
    time.over.set()
    claim = fencing.claim(store, token=tokens(1), owner=process(1), job="job", time=0.0)
    return store, Coordinator(store, claim, time.ranks(size))


ATTEMPT, OTHER = (names.write_id(f"{number:012x}", Epoch(1)) for number in (1, 2))
ORDER = SaveOrder(step=Step(5), write_id=ATTEMPT, directory=layout.checkpoint(Step(5), ATTEMPT))


@pytest.mark.parametrize(
    ("rank", "step", "write_id"),
    [
        (1, 6, ORDER.write_id),
        (1, 5, OTHER),
        (2, 5, ORDER.write_id),
    ],
    ids=["of another step", "of another attempt", "of another rank"],
)
def test_what_belongs_to_another_order_is_refused(rank: int, step: int, write_id: WriteId) -> None:
    _, coordinator = alone_of(2)
    coordinator.order(ORDER)
    meeting = coordinator._meeting
    meeting.say(
        ranks.of_rank(ranks.save(meeting.epoch, 1), 1),
        RankRecord(rank=rank, step=Step(step), write_id=write_id),
    )
    with pytest.raises(RankMissing, match=r"rank 2|Rank 1 has answered another order") as error:
        coordinator.collect({})
    assert error.value.ranks == (1,)


def test_a_process_that_says_hello_in_the_place_of_another_rank_is_not_taken_in() -> None:
    store, coordinator = alone_of(2)
    meeting = coordinator._meeting
    meeting.say(ranks.hello(meeting.epoch, 1), Hello(epoch=meeting.epoch, rank=2, world_size=2, nonce="0a"))
    with pytest.raises(RankMissing, match="in the place of rank 1 is a word of rank 2"):
        coordinator.admit()
    assert ranks.admission(meeting.epoch) not in store.list()


def test_an_error_names_the_option_that_bounds_the_wait() -> None:
    _, coordinator = alone_of(2)
    with pytest.raises(RankMissing, match="allow more time with start_timeout"):
        coordinator.admit()
    coordinator.propose(0)
    with pytest.raises(RankMissing, match="allow more time with start_timeout"):
        coordinator.ballots()
    coordinator.order(ORDER)
    with pytest.raises(RankMissing, match="allow more time with sync_timeout"):
        coordinator.collect({})
    parties = Parties(MemoryStore())
    parties.begin()
    assert parties.follower is not None
    for wait in (parties.follower.proposal, parties.follower.verdict):
        with pytest.raises(RankMissing, match="allow more time with start_timeout"):
            wait()


def test_where_ranks_do_not_come_the_error_says_who_has_told_that_there_are_any() -> None:
    store, time = MemoryStore(), Time()
    time.over.set()
    claim = fencing.claim(store, token=tokens(1), owner=process(1), job="job", time=0.0)
    told = replace(time.ranks(4), origin="SLURM says so by SLURM_PROCID='0' and SLURM_NTASKS='4'")
    with pytest.raises(
        RankMissing, match=r"1 seconds\. There are 4 ranks: SLURM says so by SLURM_PROCID='0'"
    ):
        Coordinator(store, claim, told).admit()
    with pytest.raises(RankMissing, match="SLURM says so"):
        Repository.over(store, "job", create=True).follow(1, told, owner=process(2))


def test_the_others_hear_why_rank_0_has_not_begun() -> None:
    """Where it fails with the run in its hand, too, and not only where ranks are missing."""
    inner, there = MemoryStore(), threading.Event()
    swept: list[str] = []

    class Hailing(View):
        def put_if_absent(self, key: str, data: Content) -> bool:
            written = super().put_if_absent(key, data)
            if "/hello/" in key:
                there.set()
            return written

    def at_the_first_sweep(key: str) -> bool:
        if key == layout.PACKS and not swept:
            swept.append(key)
            assert there.wait(SECONDS)
            return True
        return False

    parties = Parties(View(inner, fails=at_the_first_sweep), Hailing(inner))
    results = parties.begin()
    assert swept
    assert isinstance(results[0], StoreUnavailable), results
    assert isinstance(results[1], RankMissing)
    assert "Rank 0 has not begun. packs cannot be reached." in str(results[1])
    assert parties.begin() == [None, None]


def test_a_rank_that_cannot_hear_the_outcome_relies_on_nothing_that_may_be_gone() -> None:
    inner = MemoryStore()
    deaf = threading.Event()
    second = View(inner, fails=lambda key: deaf.is_set() and key.endswith("outcome.json"))
    parties = Parties(inner, second)
    assert parties.begin() == [None, None]
    assert parties.save(1, keep_last=1) == [None, None]
    deaf.set()
    results = parties.save(2, keep_last=1)
    deaf.clear()
    assert results[0] is None
    assert isinstance(results[1], SaveFailed)  # by which whoever saves knows that nothing is built on
    assert "It cannot be told whether the checkpoint of step 2 is committed" in str(results[1])
    # What it had at step 1 it has again: that is gone with the checkpoint, and so it is written.
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    second.written.clear()
    _, result = at_once(
        lambda: writer.checkpoints.write(state(0, 1), meta(3)),
        lambda: follower.checkpoints.write(state(1, 1), meta(3)),
        time_of=parties.time,
    )
    assert result is None
    assert any(key.startswith(layout.PACKS) for key in second.written)
    repository = Repository.over(inner, "job")
    assert [repository.verify(commit) for commit in repository.commits()] == [[], []]

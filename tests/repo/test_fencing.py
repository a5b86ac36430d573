"""Two processes that both believe the run is theirs, in every order of events that matters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.errors import AmbiguousCommit, Fenced, StoreUnavailable
from unbroken.format import layout
from unbroken.format.buffers import Content
from unbroken.format.records import Commit, HistoryRecord
from unbroken.repo import fencing
from unbroken.repo.log import read_log
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.seal import seal
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore, Names
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind
from unbroken.types import Epoch, Sequence, Step

from .states import Interrupted, assert_sound, meta, noise, process, same, snapshot, tokens


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def opened(store: ByteStore) -> Repository:
    return Repository.over(store, "job", create=True)


def test_the_earlier_writer_is_fenced_and_told_by_whom(store: MemoryStore) -> None:
    old = opened(store).writer(owner=process(1), token=tokens(1))
    first = old.write(snapshot(), meta(1))
    new = opened(store).writer(owner=process(2), token=tokens(2))
    with pytest.raises(Fenced, match="process 2 on elsewhere") as caught:
        old.write(snapshot(), meta(2))
    assert (caught.value.key, caught.value.epoch) == (layout.epoch(Epoch(2)), 2)
    second = new.write(snapshot(), meta(3))
    assert [commit.sequence for commit in opened(store).commits()] == [second.sequence, first.sequence]
    assert_sound(opened(store))


def test_a_fenced_writer_deletes_nothing(store: MemoryStore) -> None:
    old_repository = opened(store)
    old = old_repository.writer(owner=process(1), token=tokens(1))
    old.write(snapshot(b"1"), meta(1))
    old.write(snapshot(b"2"), meta(2))
    plan = plan_retention(old_repository.commits(), keep_last=1)
    opened(store).writer(owner=process(2), token=tokens(2))
    with pytest.raises(Fenced):
        old.retain(plan)
    assert len(opened(store).commits()) == 2


def _Overtaken(inner: ByteStore, event: Callable[[], None], *, after: bool) -> Interrupted:  # noqa: N802
    """Lets something happen right before or after the first commit record is written."""
    return Interrupted(
        inner, event, before=not after, when=lambda _number, _name, key: key.startswith(layout.COMMITS)
    )


class TestFencedInTheMiddle:
    """The earlier writer is past its check when the later one takes over; both hold the same contents."""

    def interrupt(
        self, store: MemoryStore, event: Callable[[], None], *, name: str, prefix: str, before: bool = True
    ) -> RunWriter:
        def when(_number: int, operation: str, key: str) -> bool:
            return operation == name and key.startswith(prefix)

        interrupted = Interrupted(store, event, before=before, when=when)
        return opened(interrupted).writer(owner=process(1), token=tokens(1))

    def test_its_successor_does_not_build_on_what_it_cleans_up(self, store: MemoryStore) -> None:
        """The pack of the overtaken writer appears when the successor has swept and looks a last time."""
        content = snapshot(noise(500, 1))
        elsewhere = MemoryStore()
        with opened(elsewhere).writer(owner=process(1), token=tokens(1)) as writer:
            writer.write(content, meta(1))
        left = {key: elsewhere.get(key) for key in elsewhere.list(layout.PACKS)}

        class Appearing(FaultyStore):
            listings = -1

            def list(self, prefix: str = "") -> Names:
                self.listings += prefix == layout.PACKS and self.listings >= 0
                if self.listings == 3:
                    for key, data in left.items():
                        store.put(key, data)
                return super().list(prefix)

        opened(store).writer(owner=process(1), token=tokens(3)).close()
        appearing = Appearing(store)
        successor = opened(appearing).writer(owner=process(2), token=tokens(2))
        appearing.listings = 0
        successor.sweep()
        assert set(left) <= set(store.list()), "swept before it was there"
        successor.write(content, meta(2))
        for key in left:
            store.delete(key)
        assert_sound(opened(store))

    def test_it_deletes_nothing_more(self, store: MemoryStore) -> None:
        deleted: list[str] = []

        def take_over() -> None:
            opened(store).writer(owner=process(2), token=tokens(2))
            deleted.append("")

        old = self.interrupt(store, take_over, name="delete", prefix=layout.STEPS)
        repository = opened(store)
        for number in range(3):
            old.write(snapshot(noise(500, number)), meta(number))
        with pytest.raises(Fenced):
            old.retain(plan_retention(repository.commits(), keep_last=1))
        assert deleted, "it was overtaken after the first deletion"
        assert_sound(opened(store))

    def test_its_late_commit_is_inert_although_higher_numbers_were_taken(self, store: MemoryStore) -> None:
        def take_over() -> None:
            opened(store).writer(owner=process(2), token=tokens(2))

        first = opened(store).writer(owner=process(0), token=tokens(9)).write(snapshot(), meta(1))
        old = self.interrupt(store, take_over, name="put_if_absent", prefix=layout.COMMITS)
        # A commit of the process before, which was overtaken, under a number far ahead.
        ahead = msgspec.structs.replace(first, sequence=Sequence(10))
        store.put(layout.commit(Sequence(10)), seal(ahead))
        with pytest.raises(Fenced):
            old.write(snapshot(b"late"), meta(2))
        assert opened(store).commits() == [first]

    @pytest.mark.parametrize("what", ["pending", "birth", "history", "sweep"])
    def test_it_writes_nothing_more(self, store: MemoryStore, what: str) -> None:
        old = opened(store).writer(owner=process(1), token=tokens(1))
        old.write(snapshot(), meta(1))
        opened(store).writer(owner=process(2), token=tokens(2))
        before = {key: store.get(key) for key in store.list()}
        actions: dict[str, Callable[[], object]] = {
            "pending": lambda: old.mark_pending(Step(2), "schedule"),
            "birth": lambda: old.write_birth(Snapshot()),
            "history": lambda: old.append_history(HistoryRecord()),
            "sweep": old.sweep,
        }
        with contextlib.suppress(Fenced):
            actions[what]()
            assert what == "sweep", "with nothing to sweep nobody needs to know"
        assert {key: store.get(key) for key in store.list()} == before

    def test_a_hint_that_comes_too_late_is_left_to_the_successor(self, store: MemoryStore) -> None:
        def take_over() -> None:
            writer = opened(store).writer(owner=process(2), token=tokens(2))
            writer.mark_pending(Step(7), "mine")

        old = self.interrupt(store, take_over, name="put", prefix=layout.LATEST)
        old.mark_pending(Step(1), "schedule")
        old.write(snapshot(), meta(1))
        pending = opened(store).pending()
        assert pending is not None
        assert pending.reason == "mine"


def test_a_commit_that_lands_late_is_not_acknowledged_and_inert(store: MemoryStore) -> None:
    late: list[Commit] = []

    def overtake() -> None:
        writer = opened(store).writer(owner=process(2), token=tokens(2))
        late.append(writer.write(snapshot(b"new"), meta(5)))
        store.delete(layout.commit(late[0].sequence))  # so that the zombie's record finds its number free
        late.append(writer.write(snapshot(b"newer"), meta(6)))

    old = opened(_Overtaken(store, overtake, after=False)).writer(owner=process(1), token=tokens(1))
    with pytest.raises(Fenced):
        old.write(snapshot(b"zombie"), meta(4))
    repository = opened(store)
    assert repository.commits() == [late[1]]
    assert [commit.epoch for commit in repository.stale()] == [1]
    with repository.writer(owner=process(3), token=tokens(3)) as writer:
        assert repository.stale() == [], "the next writer removes it"
        assert writer.write(snapshot(), meta(7)).sequence > late[1].sequence
    assert_sound(repository)


def test_a_commit_that_was_seen_by_the_successor_counts_although_its_writer_was_told_otherwise(
    store: MemoryStore,
) -> None:
    def overtake() -> None:
        opened(store).writer(owner=process(2), token=tokens(2))

    old = opened(_Overtaken(store, overtake, after=True)).writer(owner=process(1), token=tokens(1))
    with pytest.raises(Fenced):
        old.write(snapshot(b"last"), meta(4))
    (commit,) = opened(store).commits()
    assert same(opened(store).load(commit), snapshot(b"last")), "and nothing of it was cleaned away"


def test_a_sequence_number_taken_by_a_zombie_is_skipped(store: MemoryStore) -> None:
    writer = opened(store).writer(owner=process(1), token=tokens(1))
    first = writer.write(snapshot(), meta(1))
    foreign = msgspec.structs.replace(first, sequence=Sequence(2), epoch=Epoch(0))
    store.put(layout.commit(Sequence(2)), seal(foreign))
    assert writer.write(snapshot(b"x"), meta(2)).sequence == 3
    assert [commit.sequence for commit in opened(store).commits()] == [3, 1]


def test_an_epoch_that_claimed_and_slept_cannot_start_later(store: MemoryStore) -> None:
    opened(store)
    sleeper = fencing.claim(store, token=tokens(1), owner=process(1), job="job", time=0.0)
    writer = opened(store).writer(owner=process(2), token=tokens(2))
    commit = writer.write(snapshot(), meta(1))
    with pytest.raises(Fenced):
        fencing.start(store, sleeper, last=Sequence(0))
    assert opened(store).commits() == [commit]


class _Asleep(FaultyStore):
    """Falls asleep when it is about to write a start record."""

    def __init__(self, inner: ByteStore) -> None:
        super().__init__(inner)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def put_if_absent(self, key: str, data: Content) -> bool:
        if key.endswith(".start.json"):
            self.reached.set()
            assert self.go_on.wait(60)
        return super().put_if_absent(key, data)


def test_a_sleeper_cannot_declare_void_what_its_successor_has_resumed_from(store: MemoryStore) -> None:
    asleep = _Asleep(store)
    outcome: list[BaseException] = []
    sleepers: list[threading.Thread] = []

    def start(claimed: fencing.Claim) -> None:
        try:
            fencing.start(asleep, claimed, last=read_log(store).last)
        except Fenced as error:
            outcome.append(error)

    def claim_and_fall_asleep() -> None:
        claimed = fencing.claim(store, token=tokens(2), owner=process(2), job="job", time=0.0)
        sleepers.append(threading.Thread(target=start, args=(claimed,), daemon=True))
        sleepers[0].start()
        assert asleep.reached.wait(60), "it has listed the commits, and not yet seen the one that comes now"

    first = opened(_Overtaken(store, claim_and_fall_asleep, after=False)).writer(
        owner=process(1), token=tokens(1)
    )
    with pytest.raises(Fenced):
        first.write(snapshot(), meta(1))
    opened(store).writer(owner=process(3), token=tokens(3))
    resumed_from = opened(store).commits()
    assert len(resumed_from) == 1
    asleep.go_on.set()
    sleepers[0].join(60)
    assert len(outcome) == 1
    assert opened(store).commits() == resumed_from


def test_a_damaged_start_record_hides_no_more_than_it_did(store: MemoryStore) -> None:
    first = opened(store).writer(owner=process(1), token=tokens(1)).write(snapshot(), meta(1))
    second_writer = opened(store).writer(owner=process(2), token=tokens(2))
    second = second_writer.write(snapshot(), meta(2))
    zombie = msgspec.structs.replace(first, sequence=Sequence(3))
    store.put(layout.commit(Sequence(3)), seal(zombie))
    before = read_log(store)
    assert [commit.sequence for commit in before.stale] == [3]
    store.put(layout.epoch_start(Epoch(2)), b"{}")
    after = read_log(store)
    assert (after.commits, after.stale) == ((second, first), before.stale)
    assert [fault.key for fault in after.broken] == [layout.epoch_start(Epoch(2))]


def test_numbers_of_deleted_commits_are_not_used_again(store: MemoryStore) -> None:
    for number in range(1, 4):
        with opened(store).writer(owner=process(number), token=tokens(number)) as writer:
            writer.write(snapshot(), meta(number))
            writer.retain(plan_retention(opened(store).commits(), keep_last=1))
    for key in store.list(layout.COMMITS):
        store.delete(key)
    with opened(store).writer(owner=process(9), token=tokens(9)) as writer:
        assert writer.write(snapshot(), meta(9)).sequence >= 3


class TestLostAnswers:
    def test_a_commit_whose_answer_was_lost_is_found(self, store: MemoryStore) -> None:
        counting = FaultyStore(store)
        with opened(counting).writer(token=tokens(1)) as writer:
            writer.write(snapshot(), meta(1))
        at = next(i for i, done in enumerate(counting.operations) if done.key.startswith(layout.COMMITS))
        fresh = MemoryStore()
        with opened(FaultyStore(fresh, fault=Fault(Kind.LOST_RESPONSE, at))).writer(
            token=tokens(1)
        ) as writer:
            commit = writer.write(snapshot(), meta(1))
        assert opened(fresh).commits() == [commit]

    def test_a_store_that_says_nothing_more_leaves_the_outcome_open(self, store: MemoryStore) -> None:
        class Silent(FaultyStore):
            silent = False

            def put_if_absent(self, key: str, data: Content) -> bool:
                done = super().put_if_absent(key, data)
                if key.startswith(layout.COMMITS):
                    self.silent = True
                    raise StoreUnavailable("no answer", key=key)
                return done

            def get(self, key: str) -> bytes:
                if self.silent:
                    raise StoreUnavailable("no answer", key=key)
                return super().get(key)

            def size(self, key: str) -> int:
                return len(self.get(key))

        writer = opened(Silent(store)).writer(token=tokens(1))
        with pytest.raises(AmbiguousCommit):
            writer.write(snapshot(b"x"), meta(1))
        (commit,) = opened(store).commits()
        assert same(opened(store).load(commit), snapshot(b"x")), "it may exist, so nothing was removed"

    def test_a_claim_whose_answer_was_lost_is_ones_own(self, store: MemoryStore) -> None:
        opened(store)
        faulty = FaultyStore(store, fault=Fault(Kind.LOST_RESPONSE, 0))
        claimed = fencing.claim(faulty, token=tokens(1), owner=process(1), job="job", time=0.0)
        assert claimed.epoch == 1
        assert fencing.read_epochs(store).highest == 1


@dataclass
class Baton:
    """Lets one thread at a time run, and passes on at every operation as the schedule says."""

    schedule: list[int]
    condition: threading.Condition = field(default_factory=threading.Condition)
    waiting: set[int] = field(default_factory=set[int])
    running: set[int] = field(default_factory=set[int])
    turn: int | None = None

    def take(self, me: int) -> None:
        with self.condition:
            self.waiting.add(me)
            self.pass_on()
            self.condition.wait_for(lambda: self.turn == me)
            self.waiting.discard(me)
            self.turn = None

    def done(self, me: int) -> None:
        with self.condition:
            self.running.discard(me)
            self.pass_on()

    def pass_on(self) -> None:
        """Choose the next once every live thread has come to its next operation."""
        if self.waiting == self.running and self.waiting:
            choices = sorted(self.waiting)
            number = self.schedule.pop() if self.schedule else 0
            self.turn = choices[number % len(choices)]
            self.condition.notify_all()


class Taken:
    """A store whose every operation waits for the baton."""

    def __init__(self, inner: MemoryStore, baton: Baton, me: int) -> None:
        self._inner, self._baton, self._me = inner, baton, me

    def get(self, key: str) -> bytes:
        self._baton.take(self._me)
        return self._inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._baton.take(self._me)
        return self._inner.get_range(key, offset, length)

    def size(self, key: str) -> int:
        self._baton.take(self._me)
        return self._inner.size(key)

    def put(self, key: str, data: Content) -> None:
        self._baton.take(self._me)
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: Content) -> bool:
        self._baton.take(self._me)
        return self._inner.put_if_absent(key, data)

    def list(self, prefix: str = "") -> Names:
        self._baton.take(self._me)
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._baton.take(self._me)
        self._inner.delete(key)


class Watched(MemoryStore):
    """Looks at the run after each operation that could break a checkpoint. One thread at a time runs."""

    def put_if_absent(self, key: str, data: Content) -> bool:
        done = super().put_if_absent(key, data)
        if key.startswith(layout.COMMITS):
            assert_sound(opened(self))
        return done

    def delete(self, key: str) -> None:
        super().delete(key)
        assert_sound(opened(self))


@settings(max_examples=40, deadline=None)
@given(schedule=st.lists(st.integers(0, 2), max_size=400))
def test_any_interleaving_of_writers_keeps_what_was_acknowledged(schedule: list[int]) -> None:
    """Three processes take the run over from each other at arbitrary moments; no lock helps them.

    They train alike, so their saves share blobs, and they delete what they no longer keep.
    """
    store = Watched()
    opened(store)
    baton = Baton(list(schedule), running={0, 1, 2})
    acknowledged: list[Commit] = []
    resumed_from: list[tuple[Epoch, list[Commit]]] = []
    dropped: set[str] = set()
    unexpected: list[BaseException] = []

    def live(me: int) -> None:
        try:
            own = Taken(store, baton, me)
            repository = Repository(own, "job")
            writer = repository.writer(owner=process(me), token=tokens(me + 1))
            resumed_from.append((writer.epoch, repository.commits()))
            for step in range(3):
                commit = writer.write(snapshot(noise(50, step % 2)), meta(step))
                acknowledged.append(commit)
                plan = plan_retention(repository.commits(), keep_last=2)
                dropped.update(commit.write_id for commit in plan.dropped)
                writer.retain(plan)
        except Fenced:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by the thread that runs the test
            unexpected.append(error)
        finally:
            baton.done(me)

    threads = [threading.Thread(target=live, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert unexpected == []

    repository = opened(store)
    seen = repository.commits()
    there = dropped | {commit.write_id for commit in seen}
    assert {commit.write_id for commit in acknowledged} <= there
    for epoch, commits in resumed_from:
        assert {commit.write_id for commit in commits} <= there, "what a process resumed from stays"
        for commit in acknowledged:
            if commit.epoch < epoch and commit.write_id not in dropped:
                assert commit in commits, "a successor sees everything that was acknowledged before it"
            if commit.epoch == epoch:
                assert all(commit.sequence > earlier.sequence for earlier in commits)
    by_number = sorted(seen, key=lambda commit: commit.sequence)
    assert [c.epoch for c in by_number] == sorted(c.epoch for c in by_number), "epochs never alternate"
    assert_sound(repository)

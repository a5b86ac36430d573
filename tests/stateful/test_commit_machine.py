"""A run against a model of it: a dict from commits to states, whatever happens in between.

The machine saves, retains, reopens, crashes in the middle of a save or a collection, takes the run
over from itself, and damages objects. After every step the run must show exactly what the model holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unbroken.errors import Fenced
from unbroken.format import layout, pack
from unbroken.format.records import Commit
from unbroken.repo import names
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best, RetentionPlan, plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.snapshot import Snapshot
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Sequence

from ..repo.states import (  # noqa: TID252 - tests are no installed package
    Interrupted,
    assert_sound,
    assert_swept,
    meta,
    noise,
    process,
    same,
    snapshot,
    tokens,
)

seeds = st.integers(0, 3)
moments = st.integers(0, 20)
endings = st.sampled_from([Kind.STOP_BEFORE, Kind.STOP_AFTER])


def state(weights: int, buffer: int, step: int) -> Snapshot:
    """Few different contents, so that checkpoints share blobs."""
    return snapshot(noise(2000, weights), noise(3000, buffer), step=step)


def dead_share(store: MemoryStore) -> float:
    """Return which share of the packs' blobs no commit needs, or lies there a second time."""
    repository = Repository(store, "job")
    needed = {digest for commit in repository.commits() for digest in repository.manifest(commit).blobs}
    entries = [
        entry
        for key in store.list(layout.PACKS)
        if key.endswith(".idx")
        for entry in pack.decode_index(store.get(key)).entries
    ]
    live = {entry.digest: entry.length for entry in entries if entry.digest in needed}
    return 1 - sum(live.values()) / sum(entry.length for entry in entries)


class CommitMachine(RuleBasedStateMachine):
    """The model is `states`: what each commit that exists must load as."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.states: dict[Sequence, Snapshot] = {}
        self.ever: set[Sequence] = set()
        self.step = 0
        self.lives = 0
        self.zombies: list[RunWriter] = []
        self.interrupted = Interrupted(self.store, lambda: None, before=True, when=lambda *_: False)
        self.writer = self.start()

    def start(self) -> RunWriter:
        self.lives += 1
        repository = Repository.over(self.store, "job", create=True)
        return repository.writer(owner=process(self.lives), token=tokens(self.lives))

    def add(self, commit: Commit, content: Snapshot) -> None:
        assert commit.sequence not in self.ever, "no number is used twice"
        self.ever.add(commit.sequence)
        self.states[commit.sequence] = content

    def next_state(self, weights: int, buffer: int) -> Snapshot:
        self.step += 1
        return state(weights, buffer, self.step)

    def plan(self, keep_last: int) -> RetentionPlan:
        commits = Repository(self.store, "job").commits()
        return plan_retention(commits, keep_last=keep_last, best=Best("reward"))

    @initialize(weights=seeds, buffer=seeds)
    def first_save(self, weights: int, buffer: int) -> None:
        content = self.next_state(weights, buffer)
        self.add(self.writer.write(content, meta(self.step)), content)

    @rule(weights=seeds, buffer=seeds, reward=st.none() | st.floats(), good=st.booleans())
    def save(self, weights: int, buffer: int, reward: float | None, good: bool) -> None:
        content = self.next_state(weights, buffer)
        metrics = {} if reward is None else {"reward": reward}
        self.add(self.writer.write(content, meta(self.step, metrics=metrics, good=good)), content)

    @rule(keep_last=st.integers(1, 4))
    def retain(self, keep_last: int) -> None:
        plan = self.plan(keep_last)
        self.writer.retain(plan)
        for commit in plan.dropped:
            del self.states[commit.sequence]
        assert_swept(Repository(self.store, "job"))

    @rule(keep_last=st.integers(1, 4))
    def prune(self, keep_last: int) -> None:
        plan = self.plan(keep_last)
        self.writer.prune(plan)
        for commit in plan.dropped:
            del self.states[commit.sequence]
        assert_swept(Repository(self.store, "job"))
        assert dead_share(self.store) < 0.1

    @rule()
    def restart(self) -> None:
        self.writer.close()
        self.writer = self.start()
        assert_swept(Repository(self.store, "job"))

    @rule()
    def take_over(self) -> None:
        self.zombies.append(self.writer)
        self.writer = self.start()

    @precondition(lambda self: self.zombies)
    @rule(weights=seeds, buffer=seeds)
    def wake_a_zombie(self, weights: int, buffer: int) -> None:
        zombie = self.zombies.pop()
        with contextlib.suppress(Fenced):
            zombie.write(self.next_state(weights, buffer), meta(self.step))
            raise AssertionError("a fenced writer was told that its commit counts")

    @rule(weights=seeds, buffer=seeds, at=moments, before=st.booleans(), keep_last=st.integers(1, 3))
    def be_overtaken_while_saving(
        self, weights: int, buffer: int, at: int, before: bool, keep_last: int
    ) -> None:
        """In the middle of a save another process takes over, saves the same contents and collects."""
        content = self.next_state(weights, buffer)

        def take_over() -> None:
            self.writer = self.start()
            self.adopt(content)
            self.save_the_same(content)
            self.retain(keep_last)

        with contextlib.suppress(Fenced):
            commit = self.interrupted_writer(take_over, at, before=before).write(content, meta(self.step))
            if commit.sequence not in self.ever:
                self.add(commit, content)
        self.interrupted.event = None  # it came to its end before

    @rule(at=moments, before=st.booleans(), which=st.integers(0, 2), whole=st.booleans())
    def be_overtaken_while_collecting(self, at: int, before: bool, which: int, whole: bool) -> None:
        """In the middle of a collection another process takes over, and saves what is being deleted."""
        for number in range(4):
            self.save(number, number, None, good=True)
        plan = self.plan(1)
        content = self.states[plan.dropped[which].sequence]

        def forget() -> None:
            left = {commit.sequence for commit in Repository(self.store, "job").commits()}
            for commit in plan.dropped:
                if commit.sequence not in left:
                    self.states.pop(commit.sequence, None)

        def take_over() -> None:
            self.writer = self.start()
            self.save_the_same(content)
            if whole:
                self.writer.prune()

        with contextlib.suppress(Fenced):
            writer = self.interrupted_writer(take_over, at, before=before)
            if whole:
                writer.prune(plan)
            else:
                writer.retain(plan)
        self.interrupted.event = None  # it came to its end before
        forget()

    def save_the_same(self, content: Snapshot) -> None:
        self.step += 1
        self.add(self.writer.write(content, meta(self.step)), content)

    def adopt(self, content: Snapshot) -> None:
        """Note a commit of which its writer was not told."""
        for commit in Repository(self.store, "job").commits():
            if commit.sequence not in self.ever:
                self.add(commit, content)

    def interrupted_writer(self, event: Callable[[], None], at: int, *, before: bool) -> RunWriter:
        """Start a process that is interrupted at its operation number `at`, counted from now."""
        self.writer.close()
        self.lives += 1
        interrupted = Interrupted(
            self.store, event, before=before, when=lambda number, _name, _key: number == start + at
        )
        start = 10**6  # nothing happens while it starts
        repository = Repository.over(interrupted, "job", create=True)
        self.writer = repository.writer(owner=process(self.lives), token=tokens(self.lives))
        start = interrupted.number
        self.interrupted = interrupted
        return self.writer

    @rule(weights=seeds, buffer=seeds, at=moments, ending=endings)
    def die_while_saving(self, weights: int, buffer: int, at: int, ending: Kind) -> None:
        content = self.next_state(weights, buffer)
        known = {commit.sequence for commit in Repository(self.store, "job").commits()}
        with contextlib.suppress(Stopped):
            commit = self.dying_writer(at, ending).write(content, meta(self.step))
            self.add(commit, content)
        for commit in Repository(self.store, "job").commits():
            if commit.sequence not in known | self.states.keys():
                self.add(commit, content)  # it was committed, and nobody lived to be told
        self.writer = self.start()
        assert_swept(Repository(self.store, "job"))

    @rule(keep_last=st.integers(1, 3), at=moments, ending=endings, whole=st.booleans())
    def die_while_collecting(self, keep_last: int, at: int, ending: Kind, whole: bool) -> None:
        plan = self.plan(keep_last)
        with contextlib.suppress(Stopped):
            writer = self.dying_writer(at, ending)
            if whole:
                writer.prune(plan)
            else:
                writer.retain(plan)
        left = {commit.sequence for commit in Repository(self.store, "job").commits()}
        for commit in plan.dropped:
            if commit.sequence not in left:
                del self.states[commit.sequence]
        self.writer = self.start()
        assert_swept(Repository(self.store, "job"))

    def dying_writer(self, at: int, ending: Kind) -> RunWriter:
        self.writer.close()
        self.lives += 1
        faulty = FaultyStore(self.store, fault=Fault(ending, at))
        repository = Repository.over(faulty, "job", create=True)
        return repository.writer(owner=process(self.lives), token=tokens(self.lives))

    @rule(position=st.integers(0, 10**6), bit=st.integers(0, 7))
    def damage_and_repair(self, position: int, bit: int) -> None:
        """A damaged object is named and takes nothing else with it; repaired, all is as it was."""
        repository = Repository(self.store, "job")
        newest = repository.commits()[0]
        keys = self.store.list(newest.directory)
        key = keys[position % len(keys)]
        data = self.store.get(key)
        flipped = bytearray(data)
        flipped[position % len(data)] ^= 1 << bit
        self.store.put(key, bytes(flipped))
        assert [fault.key for fault in repository.verify(newest)] == [key]
        assert len(repository.commits()) == len(self.states)
        self.store.put(key, data)

    @invariant()
    def the_run_shows_what_the_model_holds(self) -> None:
        repository = Repository(self.store, "job")
        commits = repository.commits()
        assert [commit.sequence for commit in commits] == sorted(self.states, reverse=True)
        for fault in repository.broken():
            # An overtaken writer may have written the index of a pack that its successor had swept.
            name = layout.pack_name(fault.key)
            assert name is not None
            assert (names.epoch_of(name) or self.writer.epoch) < self.writer.epoch
        assert_sound(repository)
        for commit in commits[:2]:
            assert same(repository.load(commit), self.states[commit.sequence])

    def teardown(self) -> None:
        repository = Repository(self.store, "job")
        for commit in repository.commits():
            assert repository.verify(commit) == []
            assert same(repository.load(commit), self.states[commit.sequence])
        assert layout.FORMAT in self.store.list()


TestCommits = CommitMachine.TestCase
TestCommits.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)

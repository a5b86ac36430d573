"""A training with a ring against a model: whatever is saved, dropped, compacted, copied or cut off, every
checkpoint that is kept loads byte for byte, and what is dead goes.
"""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from unbroken.repo.copying import copy
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.usage import measure
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Sequence

from ..repo.rings import Ring  # noqa: TID252 - tests are no installed package
from ..repo.states import assert_sound, meta, process, same, tokens  # noqa: TID252

moments = st.integers(0, 25)
endings = st.sampled_from([Kind.STOP_BEFORE, Kind.STOP_AFTER])
numbers = st.integers(1, 4)


class SpaceMachine(RuleBasedStateMachine):
    """The model is `states`: what each commit that exists must load as."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.ring = Ring(24, weights=3000)
        self.states: dict[Sequence, Snapshot] = {}
        self.lives = 0
        self.writer = self.start(self.store)

    def start(self, store: ByteStore) -> RunWriter:
        self.lives += 1
        repository = Repository.over(store, "job", create=True)
        return repository.writer(owner=process(self.lives), token=tokens(self.lives))

    @property
    def repository(self) -> Repository:
        return Repository(self.store, "job")

    @initialize()
    def first_save(self) -> None:
        self.train_and_save(12)

    @rule(chunks=st.integers(1, 9))
    def train_and_save(self, chunks: int) -> None:
        self.ring.train(chunks)
        state = self.ring.changed()
        commit = self.writer.write(state, meta(self.ring.step))
        self.ring.saved(state)
        self.states[commit.sequence] = self.ring.whole()

    @rule(keep_last=numbers)
    def retain(self, keep_last: int) -> None:
        plan = plan_retention(self.repository.commits(), keep_last=keep_last)
        self.writer.retain(plan)
        for commit in plan.dropped:
            del self.states[commit.sequence]

    @rule(keep_last=numbers)
    def prune(self, keep_last: int) -> None:
        plan = plan_retention(self.repository.commits(), keep_last=keep_last)
        self.writer.prune(plan)
        for commit in plan.dropped:
            del self.states[commit.sequence]
        cost = measure(self.store)
        assert cost.dead < 0.1 * cost.on_disk

    @rule()
    def restart(self) -> None:
        self.writer.close()
        self.writer = self.start(self.store)

    @rule()
    def be_overtaken(self) -> None:
        self.writer = self.start(self.store)

    @rule(keep_last=numbers, at=moments, ending=endings)
    def die_while_pruning(self, keep_last: int, at: int, ending: Kind) -> None:
        self.writer.close()
        plan = plan_retention(self.repository.commits(), keep_last=keep_last)
        with contextlib.suppress(Stopped):
            self.start(FaultyStore(self.store, fault=Fault(ending, at))).prune(plan)
        left = {commit.sequence for commit in self.repository.commits()}
        for commit in plan.dropped:
            if commit.sequence not in left:
                del self.states[commit.sequence]
        self.writer = self.start(self.store)

    @rule()
    def move_to_a_copy(self) -> None:
        """Training goes on in a copy of all checkpoints; their numbers are new ones there."""
        self.writer.close()
        source, commits = self.repository, self.repository.commits()[::-1]
        self.store = MemoryStore()
        self.writer = self.start(self.store)
        copies = list(copy(source, commits, self.repository, self.writer))
        self.states = {one.target.sequence: self.states[one.source.sequence] for one in copies}

    @invariant()
    def every_checkpoint_loads_byte_for_byte(self) -> None:
        repository = self.repository
        commits = repository.commits()
        assert [commit.sequence for commit in commits] == sorted(self.states, reverse=True)
        assert_sound(repository)
        for commit in commits:
            assert same(repository.load(commit), self.states[commit.sequence])


TestSpace = SpaceMachine.TestCase
TestSpace.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)

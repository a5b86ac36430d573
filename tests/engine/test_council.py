"""Two ranks that find out from where to go on, each by its own view of the store: what they hear and what stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.training import POLICY, Training, source_of
from tests.repo.parties import Parties, View, at_once
from tests.repo.states import meta
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.faults import FaultKind, Traces
from unbroken.engine.recovery import Tier
from unbroken.engine.resume import Resumption
from unbroken.engine.settings import Settings
from unbroken.engine.start import find_start
from unbroken.engine.world import World
from unbroken.errors import NotCapturable, NoUsableCheckpoint, RankMissing, StoreUnavailable
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore

STEPS = (10, 20)


@dataclass
class Start:
    """Both ranks at the start of the same script."""

    parties: Parties
    trainings: tuple[Training, Training]
    sources: list[GraftSource]
    results: list[Any]

    def found(self, rank: int) -> Resumption:
        result = self.results[rank]
        assert isinstance(result, Resumption), self.results
        return result

    def save(self, step: int) -> list[object]:
        """Let both save what they have."""
        writer, follower = self.parties.writer, self.parties.follower
        assert writer is not None
        assert follower is not None
        return at_once(
            lambda: writer.checkpoints.write(self.sources[0].capture(), meta(step)),
            lambda: follower.checkpoints.write(self.sources[1].capture(), meta(step)),
            time_of=self.parties.time,
        )


def start(
    first: ByteStore,
    second: ByteStore,
    *,
    seed: int = 2,
    prepare: Callable[[Start], None] = lambda _: None,
    waits: bool = False,
) -> Start:
    """Let both begin and find out from where to go on. `waits`: time passes though both are there."""
    parties = Parties(first, second, seed=seed, replicated=frozenset())
    parties.time.start_timeout = 1000.0 if waits else 1.0
    assert parties.begin() == [None, None]
    trainings = (Training(seed=7), Training(seed=8))
    made = Start(parties, trainings, [*map(source_of, trainings)], [])
    prepare(made)
    settings = Settings(root=Path("unused"), job="job")
    stores, seats = (first, second), (parties.writer, parties.follower)

    def find(rank: int) -> Resumption:
        seat = seats[rank]
        assert seat is not None
        return find_start(
            Repository.over(stores[rank], "job"), seat, made.sources[rank], settings,
            World(rank=rank, size=2, replicated=()),
            segment=0, rebuilder=None, traces=Traces(known=False),
        )  # fmt: skip

    if waits:
        parties.time.over.set()
    made.results = at_once(lambda: find(0), lambda: find(1), time_of=None if waits else parties.time)
    return made


@pytest.fixture
def trained() -> MemoryStore:
    """A run of two ranks with checkpoints of two steps."""
    store = MemoryStore()
    begun = start(store, store, seed=1)
    assert begun.found(0).tier is begun.found(1).tier is Tier.FRESH
    for step in STEPS:
        for training in begun.trainings:
            training.step()
        assert begun.save(step)[1] is None
    assert [commit.step for commit in commits(store)] == [20, 10]
    return store


def commits(store: ByteStore) -> list[Commit]:
    return Repository.over(store, "job").commits()


class Windowed(GraftSource):
    """A training that holds something which cannot be saved."""

    def skeleton(self) -> Snapshot:
        raise NotCapturable("The training holds a window.", place="training/window")


def not_capturable(rank: int) -> Callable[[Start], None]:
    def prepare(begun: Start) -> None:
        begun.sources[rank] = Windowed({"training": begun.trainings[rank]}, policy_of_loaded(POLICY))

    return prepare


# What another rank cannot use


def test_a_commit_that_another_rank_does_not_see_is_passed_over_and_stays(trained: MemoryStore) -> None:
    newest, older = commits(trained)
    second = View(trained, hides=lambda key: key == layout.commit(newest.sequence))
    found = start(trained, second, waits=True)
    for rank in range(2):
        assert found.found(rank).commit == older
        assert found.found(rank).tier is Tier.OLDER or rank == 1  # it sees no newer one
    assert found.found(0).damaged == frozenset()
    assert found.found(0).fault.kind is not FaultKind.DATA
    assert (
        "rank 1: commits/0000000002.json, which rank 0 reads, does not show here" in found.found(0).reasons[0]
    )


def test_a_commit_that_only_a_listing_does_not_show_is_asked_for_by_name(trained: MemoryStore) -> None:
    newest = commits(trained)[0]

    class Behind(View):
        def list(self, prefix: str = "") -> list[str]:
            return [key for key in super().list(prefix) if key != layout.commit(newest.sequence)]

    found = start(trained, Behind(trained))
    assert [found.found(rank).commit for rank in range(2)] == [newest, newest]


def test_damage_that_only_another_rank_reads_is_no_reason_to_delete(trained: MemoryStore) -> None:
    newest, older = commits(trained)
    found = start(
        trained, View(trained, spoils=lambda key: key.startswith(f"{newest.directory}/training_state@rank1"))
    )
    assert [found.found(rank).commit for rank in range(2)] == [older, older]
    assert found.found(0).damaged == frozenset()
    assert "training_state@rank1" in found.found(0).reasons[0]


def test_damage_that_rank_0_finds_too_condemns_the_commit(trained: MemoryStore) -> None:
    newest, older = commits(trained)
    (victim,) = [key for key in trained.list(newest.directory) if "training_state@rank1" in key]
    trained.put(victim, b"x" + trained.get(victim)[1:])
    found = start(trained, trained)
    assert [found.found(rank).commit for rank in range(2)] == [older, older]
    assert found.found(0).damaged == {newest.sequence}
    assert found.found(0).fault.kind is FaultKind.DATA


def test_where_rank_0_cannot_look_for_the_damage_the_commit_stays(trained: MemoryStore) -> None:
    newest, older = commits(trained)
    victim = f"{newest.directory}/training_state@rank1"
    begun: list[bool] = []
    first = View(trained, fails=lambda key: bool(begun) and key.startswith(victim))
    second = View(trained, spoils=lambda key: key.startswith(victim))
    found = start(first, second, prepare=lambda _: begun.append(True))
    assert [found.found(rank).commit for rank in range(2)] == [older, older]
    assert found.found(0).damaged == frozenset()


# What goes wrong before anything was proposed, or answered


def test_rank_0_hears_at_once_why_another_rank_cannot_begin() -> None:
    store = MemoryStore()
    found = start(store, store, prepare=not_capturable(1))
    assert isinstance(found.results[1], NotCapturable)
    assert isinstance(found.results[0], RankMissing)
    assert found.results[0].ranks == (1,)
    assert found.results[1].message in found.results[0].message


def test_the_others_hear_why_rank_0_cannot_begin() -> None:
    store = MemoryStore()
    found = start(store, store, prepare=not_capturable(0))
    assert isinstance(found.results[0], NotCapturable)
    assert isinstance(found.results[1], NoUsableCheckpoint)
    assert found.results[0].message in str(found.results[1])


def test_a_rank_that_cannot_list_the_commits_says_so(trained: MemoryStore) -> None:
    begun: list[bool] = []
    second = View(trained, fails=lambda key: bool(begun) and key.startswith(layout.COMMITS))
    found = start(trained, second, prepare=lambda _: begun.append(True))
    assert isinstance(found.results[1], StoreUnavailable)
    assert isinstance(found.results[0], RankMissing)
    assert "rank 1: commits" in found.results[0].message
    assert len(commits(trained)) == 2


def test_a_rank_that_has_gone_is_heard_where_rank_0_has_passed_over_what_it_proposed_first(
    trained: MemoryStore,
) -> None:
    newest = commits(trained)[0]
    for key in trained.list(newest.directory):
        if "training_state@rank0" in key:
            trained.put(key, b"x" + trained.get(key)[1:])
    found = start(trained, trained, prepare=not_capturable(1))
    assert isinstance(found.results[1], NotCapturable)
    assert isinstance(found.results[0], RankMissing)
    assert found.results[1].message in found.results[0].message


# What goes wrong when all have gone on


def test_what_cannot_be_read_after_the_verdict_costs_a_rank_one_whole_save(trained: MemoryStore) -> None:
    told = threading.Event()

    def lost(key: str) -> bool:
        return told.is_set() and not key.startswith(("ranks", "epochs"))

    class Losing(View):
        """Cannot be reached from the moment at which this rank has heard that all go on."""

        def get(self, key: str) -> bytes:
            data = super().get(key)
            if key.endswith("verdict.json"):
                told.set()
            return data

    second = Losing(trained, fails=lost)
    found = start(trained, second)
    assert found.found(1).restored
    assert told.is_set()
    told.clear()
    second.written.clear()
    for training in found.trainings:
        training.step()
    assert found.save(30)[1] is None
    repository = Repository.over(trained, "job")
    assert [repository.verify(commit) for commit in repository.commits()] == [[], [], []]

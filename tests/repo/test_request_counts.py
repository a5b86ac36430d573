"""What docs/scale.md says of requests: counted, with several ranks over one store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from unbroken.repo.coordinator import Ranks
from unbroken.repo.follower import Follower
from unbroken.repo.rendezvous import Patience
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import FaultyStore, Operation

from .parties import REPLICATED, at_once, state
from .states import meta, process, tokens

DOCUMENTS, PACKS = 2, 1
"""That a rank of `parties.state` has for itself: a buffer and counters, in one pack."""
FEWER, MORE = 4, 12
SAVES = 5
"""By then each save replaces an older checkpoint."""
ALL = frozenset({"get", "get_range", "size", "put", "put_if_absent", "list", "delete"})
LOOKS = ("order.json", "outcome.json", "doubt.json")


def is_look(asked: Operation) -> bool:
    """Whether it is a look of one who waits: there are as many as the wait is long."""
    waits = asked.name == "list" or (asked.name == "get" and asked.key.endswith(LOOKS))
    return waits and asked.key.startswith("ranks/")


@dataclass
class Crowd:
    """Ranks of one run, each with a store that counts, and what the last save has asked of it."""

    size: int
    base: MemoryStore = field(default_factory=MemoryStore)
    seats: dict[int, RunWriter | Follower] = field(default_factory=dict[int, "RunWriter | Follower"])

    def __post_init__(self) -> None:
        self.stores = [FaultyStore(self.base, counted=ALL) for _ in range(self.size)]
        self._all(self._take_seat)
        for step in range(1, SAVES + 1):
            for store in self.stores:
                store.operations.clear()
            self._all(partial(self._save, step))

    def requests(self, rank: int) -> int:
        return sum(not is_look(asked) for asked in self.stores[rank].operations)

    def _all(self, work: Callable[[int], None]) -> None:
        failed = [found for found in at_once(*(partial(work, rank) for rank in range(self.size))) if found]
        assert failed == []

    def _take_seat(self, rank: int) -> None:
        about = Ranks(
            size=self.size, replicated=REPLICATED, sync_timeout=120.0, start_timeout=120.0,
            patience=Patience(first=0.0005, longest=0.005),
        )  # fmt: skip
        repository = Repository.over(self.stores[rank], "job", create=True)
        if rank == 0:
            self.seats[0] = repository.writer(token=tokens(1), owner=process(1), ranks=about)
        else:
            self.seats[rank] = repository.follow(rank, about, owner=process(1 + rank))

    def _save(self, step: int, rank: int) -> None:
        seat = self.seats[rank]
        seat.checkpoints.write(state(rank, step), meta(step))
        if isinstance(seat, RunWriter):
            plan = plan_retention(seat.checkpoints.commits(), keep_last=2)
            assert seat.checkpoints.record(plan, durable=0.0) == ""
            seat.retain(plan)


@pytest.fixture(scope="module")
def crowds() -> tuple[Crowd, Crowd]:
    return Crowd(FEWER), Crowd(MORE)


def for_each_rank(fewer: int, more: int) -> int:
    """Return how many requests one rank more costs. A look for a fence more or less depends on who waits."""
    return round((more - fewer) / (MORE - FEWER))


def test_rank_0_makes_as_many_requests_for_each_rank_as_the_page_says(crowds: tuple[Crowd, Crowd]) -> None:
    fewer, more = (crowd.requests(0) for crowd in crowds)
    assert for_each_rank(fewer, more) == 2 + 2 * DOCUMENTS + 6 * PACKS


def test_another_rank_asks_no_more_because_there_are_others(crowds: tuple[Crowd, Crowd]) -> None:
    fewer, more = (crowd.requests(1) for crowd in crowds)
    assert for_each_rank(fewer, more) == 0


def test_no_rank_writes_more_because_there_are_others(crowds: tuple[Crowd, Crowd]) -> None:
    puts = [
        [asked.key.partition("/")[0] for asked in crowd.stores[rank].operations if asked.name == "put"]
        for crowd in crowds
        for rank in (1, FEWER - 1)
    ]
    assert all(sorted(found) == sorted(puts[0]) for found in puts)

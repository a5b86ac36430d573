"""Words between ranks: said once, heard in time, and never after the run was taken over."""

from __future__ import annotations

import pytest

from unbroken.errors import Fenced, RankMissing, StoreUnavailable
from unbroken.format import ranks
from unbroken.format.ranks import Ballot, Proposal, Verdict
from unbroken.repo import fencing
from unbroken.repo.rendezvous import Patience, Rendezvous, read
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind

from .states import process, tokens


class Clock:
    """A time that passes only while somebody sleeps, during which things happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, object]] = []
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        for at, event in list(self.events):
            if at <= self.now:
                self.events.remove((at, event))
                assert callable(event)
                event()

    def patience(self) -> Patience:
        return Patience(first=0.1, longest=1.0, clock=lambda: self.now, sleep=self.sleep)


def claim(store: ByteStore, number: int) -> fencing.Claim:
    return fencing.claim(store, token=tokens(number), owner=process(number), job="job", time=0.0)


def meeting(store: ByteStore, clock: Clock, *, timeout: float = 10.0) -> Rendezvous:
    return Rendezvous(store, claim(store, 1), 3, clock.patience(), timeout)


def test_what_was_said_is_heard_and_cannot_be_said_otherwise() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    here.say("ranks/word.json", Proposal(sequence=7))
    here.say("ranks/word.json", Proposal(sequence=8))
    assert here.hear("ranks/word.json", Proposal) == Proposal(sequence=7)
    assert here.hear("ranks/other.json", Proposal) is None


def test_half_a_word_and_a_word_of_another_kind_are_not_heard() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    here.say("ranks/word.json", Proposal(sequence=7))
    store.put("ranks/half.json", store.get("ranks/word.json")[:-9])
    assert read(store, "ranks/half.json", Proposal) is None
    assert read(store, "ranks/word.json", Verdict) is None


def test_all_are_gathered_however_late_they_come() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    for rank, at in ((2, 3.0), (1, 9.5)):
        clock.events.append(
            (at, lambda rank=rank: here.say(ranks.of_rank("place", rank), Ballot(vote="ready")))
        )
    found = here.gather("place", Ballot, (1, 2), doing="testing")
    assert sorted(found) == [1, 2]
    assert max(clock.pauses) <= 1.0  # who waits long looks more rarely, and not too rarely


def test_those_who_are_late_are_named() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    here.say(ranks.of_rank("place", 2), Ballot(vote="ready"))
    found: dict[int, Ballot] = {}
    with pytest.raises(
        RankMissing, match="While testing, the ranks 1, 3 said nothing for 10 seconds"
    ) as error:
        here.gather("place", Ballot, (1, 2, 3), doing="testing", found=found)
    assert error.value.ranks == (1, 3)
    assert list(found) == [2]
    assert clock.now == pytest.approx(10.0)


def test_one_that_comes_in_the_last_moment_is_in_time() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    clock.events.append((10.0, lambda: here.say("place/000001.json", Ballot(vote="ready"))))
    assert list(here.gather("place", Ballot, (1,), doing="testing")) == [1]


def test_who_waits_learns_soon_that_the_run_was_taken_over() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock, timeout=1000.0)
    clock.events.append((3.0, lambda: claim(store, 2)))
    with pytest.raises(Fenced):
        here.gather("place", Ballot, (1, 2), doing="testing")
    assert clock.now < 3.0 + 3.0


def test_nothing_is_said_in_a_run_that_was_taken_over() -> None:
    store, clock = MemoryStore(), Clock()
    here = meeting(store, clock)
    claim(store, 2)
    with pytest.raises(Fenced):
        here.say("ranks/word.json", Proposal(sequence=7))
    assert "ranks/word.json" not in store.list()


def test_a_word_whose_answer_is_lost_is_said() -> None:
    inner, clock = MemoryStore(), Clock()
    here = Rendezvous(inner, claim(inner, 1), 3, clock.patience(), 10.0)
    here.store = FaultyStore(inner, fault=Fault(Kind.LOST_RESPONSE, 0))
    here.say("ranks/word.json", Proposal(sequence=7))
    assert here.hear("ranks/word.json", Proposal) == Proposal(sequence=7)


def test_a_word_that_is_not_written_is_an_error() -> None:
    inner, clock = MemoryStore(), Clock()
    here = Rendezvous(inner, claim(inner, 1), 3, clock.patience(), 10.0)
    here.store = FaultyStore(inner, fault=Fault(Kind.UNAVAILABLE, 0))
    with pytest.raises(StoreUnavailable):
        here.say("ranks/word.json", Proposal(sequence=7))


def test_looks_are_rare_where_a_look_is_a_request() -> None:
    assert Patience.for_store(MemoryStore()).first >= 0.05


def test_a_wait_that_takes_long_is_told_once() -> None:
    told: list[str] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    patience = Patience(first=1.0, longest=4.0, clock=lambda: now[0], sleep=sleep, tell=told.append)
    assert patience.until(lambda: None, seconds=60.0, why=lambda: "waits for rank 1") is None
    assert len(told) == 1
    assert told[0].startswith("waits for rank 1, ")
    told.clear()
    assert patience.until(lambda: None, seconds=9.0, why=lambda: "waits for rank 1") is None
    assert told == []

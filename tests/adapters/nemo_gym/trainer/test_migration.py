"""A session moves whole or not at all, also where an answer is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.trainer.migration import migrate
from unbroken.adapters.nemo_gym.trainer.remote import Remote
from unbroken.errors import ConfigError, Fenced, ServerMissing

from .stand_in import TOKEN, Crash, Resources


class Target(Resources):
    """Takes a session over, and may lose the answer, before or after; or leave for good."""

    loses = ""

    def do_receive(self, given: control.Receive) -> control.Nothing:
        if self.loses != "request":
            super().do_receive(given)
        if self.loses:
            raise Crash
        return control.Nothing()

    def do_sessions(self, _: control.Nothing) -> control.Sessions:
        if self.loses == "all" and "receive" in self.asked:
            raise Crash
        return super().do_sessions(_)


class Source(Resources):
    """Writes down how a surrender ended."""

    moved: tuple[bool, ...] = ()

    def do_settle(self, given: control.Settle) -> control.Nothing:
        self.moved += (given.moved,)
        return super().do_settle(given)


@pytest.fixture
def pair() -> Iterator[tuple[Source, Target]]:
    source, target = Source("a"), Target("b")
    source.put("s", {"total": 5, "steps": 1})
    yield source, target
    source.stop()
    target.stop()


def move(source: Resources, target: Resources, *, epoch: int = 0) -> None:
    with (
        closing(Remote("a", source.url, token=TOKEN)) as here,
        closing(Remote("b", target.url, token=TOKEN)) as there,
    ):
        here.epoch = epoch
        migrate(here, there, "s")


def test_a_session_moves(pair: tuple[Source, Target]) -> None:
    source, target = pair
    record = source.kept["s"]
    move(source, target)
    assert target.kept == {"s": record}
    assert source.moved == (True,)


def test_an_answer_that_is_lost_after_the_session_arrived_moves_it(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.loses = "answer"
    move(source, target)
    assert source.moved == (True,)


def test_a_session_that_did_not_arrive_stays(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.loses = "request"
    with pytest.raises(ServerMissing, match="receive"):
        move(source, target)
    assert source.moved == (False,)


def test_where_nobody_knows_whether_it_arrived_it_is_opened_nowhere(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.loses = "all"
    with pytest.raises(ServerMissing, match="calls wait at the source") as failed:
        move(source, target)
    assert source.moved == ()
    assert "unbroken gym sessions" in failed.value.hint


def test_a_session_that_the_target_has_is_not_moved_again(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.keep("s", source.kept["s"])
    with pytest.raises(ConfigError, match="already"):
        move(source, target)
    assert "surrender" not in source.asked


def test_a_coordinator_that_was_replaced_moves_nothing(pair: tuple[Source, Target]) -> None:
    source, target = pair
    source.epoch = 5
    with pytest.raises(Fenced):
        move(source, target, epoch=4)
    assert (list(source.kept), list(target.kept)) == (["s"], [])

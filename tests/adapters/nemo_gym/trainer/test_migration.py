"""A session moves whole or not at all, also where an answer is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.control import Refuses
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
    loses = False
    """Whether it gives a session away and its answer gets lost."""
    given_away = False

    def do_surrender(self, given: control.Surrender) -> control.Record:
        if self.given_away:
            raise Refuses("busy", f"Session {given.session} is being given away already.")
        record = super().do_surrender(given)
        if self.loses:
            raise Crash
        return record

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


def test_where_nobody_knows_whether_it_arrived_it_goes_on_at_the_source(pair: tuple[Source, Target]) -> None:
    """Nobody is sent to the target before the source says so: a copy there is addressed by nobody."""
    source, target = pair
    target.loses = "all"
    with pytest.raises(ServerMissing, match=f"The session s stays at {source.url}"):
        move(source, target)
    assert source.moved == (False,)


def test_a_surrender_whose_answer_is_lost_is_ended(pair: tuple[Source, Target]) -> None:
    source, target = pair
    source.loses = True
    with pytest.raises(ServerMissing, match="surrender"):
        move(source, target)
    assert list(source.moved) == [False]
    assert target.kept == {}
    source.loses = False
    move(source, target)
    assert list(source.moved) == [False, True]


@pytest.mark.parametrize(("at", "moved"), [("surrender", False), ("receive", False), ("settle", True)])
def test_an_interruption_leaves_no_calls_waiting(
    pair: tuple[Source, Target], monkeypatch: pytest.MonkeyPatch, at: str, moved: bool
) -> None:
    """Ctrl-C at any moment: the source is told how it ended."""
    source, target = pair
    done, interrupted = getattr(Remote, at), list[str]()

    def interrupt(remote: Remote, *given: object, **options: object) -> object:
        if not interrupted:
            interrupted.append(remote.name)
            if at != "settle":
                done(remote, *given, **options)
            raise KeyboardInterrupt
        return done(remote, *given, **options)

    monkeypatch.setattr(Remote, at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        move(source, target)
    assert source.moved == (moved,)


def test_a_surrender_to_somebody_else_is_not_ended(pair: tuple[Source, Target]) -> None:
    source, target = pair
    source.given_away = True
    with pytest.raises(ServerMissing, match="given away already"):
        move(source, target)
    assert source.moved == ()


def test_a_session_that_the_target_has_is_not_moved_again(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.keep("s", msgspec.structs.replace(source.kept["s"], revision=1))
    with pytest.raises(ConfigError, match="already"):
        move(source, target)
    assert "surrender" not in source.asked


def test_what_a_broken_off_attempt_has_left_is_in_nobodys_way(pair: tuple[Source, Target]) -> None:
    source, target = pair
    target.keep("s", source.kept["s"])
    move(source, target)
    assert source.moved == (True,)


def test_a_coordinator_that_was_replaced_moves_nothing(pair: tuple[Source, Target]) -> None:
    source, target = pair
    source.epoch = 5
    with pytest.raises(Fenced):
        move(source, target, epoch=4)
    assert (list(source.kept), list(target.kept)) == (["s"], [])

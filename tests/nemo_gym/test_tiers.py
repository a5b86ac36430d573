"""Real files of real servers are damaged: each session comes back by the best way that is left, and the others as they were."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.nemo_gym.episodes import COUNTER, WORKPLACE, Episode
from tests.nemo_gym.kills import Course, Rig, compared
from tests.nemo_gym.spoiling import all_of, last, spoil
from tests.nemo_gym.stack import MODEL, PATIENCE, Stack
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Recovered
from unbroken.adapters.nemo_gym.records import Answered, Began, Ended, State
from unbroken.nemo_gym import Gym

TURN = 3
"""All rollouts stand at this turn of the model when their servers die."""


class Standing:
    """Rollouts that stand at a turn, by what will happen to them, and what they come to undisturbed."""

    def __init__(self, stack: Stack, episode: Episode, *names: str) -> None:
        self.stack = stack
        self.rig = Rig(stack, episode)
        self.course: Course = self.rig.undisturbed()
        self.rows = dict(zip(names, (self.rig.next_row() for _ in names), strict=True))
        self.begun = len(stack.model_calls())
        stack.hold(TURN)
        self.answers: dict[str, Future[dict[str, Any]]] = {
            name: stack.run_later(row) for name, (_, row) in self.rows.items()
        }
        self.rig.await_calls(self.begun + len(names) * (TURN + 1))
        self.sessions = {name: self.rig.sessions(rollout)[0].id for name, (rollout, _) in self.rows.items()}

    def come_back(self) -> dict[str, Recovered]:
        """Start the resources server again, and let all rollouts go on; return how each session came back."""
        self.stack.restart("res")
        digests = self.stack.digests()
        recovery = self.stack.status().recovery
        assert (recovery.source, recovery.sessions) == ("log", len(self.rows) + 1)
        found = {one.id: one for one in recovery.listed}
        back = {name: found[session] for name, session in self.sessions.items() if session in found}
        for name, session in self.sessions.items():
            if name not in back or back[name].tier != "refused":
                assert digests[session] == self.course.digests[TURN], name
        self.stack.let_go(TURN)
        return back

    def check(self, name: str) -> None:
        """Check that a rollout came to what it comes to undisturbed."""
        assert compared(self.answers[name].result(PATIENCE)) == self.course.answer
        assert self.rig.digest(self.rows[name][0]) == self.course.digests[-1]


@pytest.mark.parametrize(
    "episode", [COUNTER, pytest.param(WORKPLACE, marks=pytest.mark.exactness)], ids=lambda e: e.name
)
def test_each_session_comes_back_by_the_best_way_that_is_left(tmp_path: Path, episode: Episode) -> None:
    settings = {"unbroken": {"log_states": True}}
    with Stack(tmp_path, settings=settings, **episode.stack) as stack:
        names = ("newest", "older", "replayed", "refused", "another")
        standing = Standing(stack, episode, *names)
        stack.kill("res")
        sessions = standing.sessions
        spoil(
            stack.gym / "res",
            (sessions["older"], State, last),
            (sessions["replayed"], State, all_of),
            (sessions["refused"], State, last),
            (sessions["refused"], Ended, last),
        )
        back = standing.come_back()
        calls = 1 + episode.calls_before(TURN)
        assert {name: (one.tier, one.redone) for name, one in back.items()} == {
            "older": ("older", 1),
            "replayed": ("replayed", calls),
            "refused": ("refused", 0),
        }, "those whose lines are whole are not worth a word"
        for name, one in back.items():
            assert any("a line of it is damaged" in reason for reason in one.reasons), name
        for name in ("newest", "older", "replayed", "another"):
            standing.check(name)
        model_calls = len(stack.model_calls())
        assert model_calls == standing.begun + 4 * episode.turns + TURN + 1
        with pytest.raises(httpx.HTTPStatusError, match="503") as caught:
            standing.answers["refused"].result(PATIENCE)
        reply = caught.value.response
        assert reply.headers[words.REFUSED] == "lost session"
        assert "damaged" in reply.json()["error"] and "reward" not in reply.json()
        # Whoever asks again gets a rollout from the beginning.
        rollout, row = standing.rows["refused"]
        assert compared(stack.run(row)) == standing.course.answer
        assert len(stack.model_calls()) == model_calls + episode.turns
        assert {s.digest for s in standing.rig.sessions(rollout) if s.status == "open"} == {
            standing.course.digests[-1]
        }


def test_a_trainer_gets_no_reward_from_a_lost_session_but_a_rollout_from_the_beginning(
    tmp_path: Path,
) -> None:
    with Stack(tmp_path, **COUNTER.stack) as stack, Gym(stack.addresses, agent="agent") as gym:
        stack.hold(TURN)
        (rollout,) = gym.submit([COUNTER.row])
        stack.await_turn(TURN)
        ((session, _),) = stack.digests().items()
        stack.kill("res")
        spoil(stack.gym / "res", (session, Ended, last))
        stack.let_go(TURN)
        stack.restart("res")
        (taken,) = gym.take(1, timeout=PATIENCE)
        assert (taken.id, taken.outcome, taken.reward, taken.attempt) == (rollout, "completed", 1.0, 1)
        assert sorted(stack.model_calls()) == sorted([*range(TURN + 1), *range(COUNTER.turns)])
        status = gym.status()["res"].recovery
        assert [(one.id, one.tier) for one in status.listed] == [(session, "refused")]


def test_a_log_that_is_gone_is_no_empty_session(tmp_path: Path) -> None:
    with Stack(tmp_path, **COUNTER.stack) as stack:
        standing = Standing(stack, COUNTER, "gone")
        stack.kill("res")
        shutil.rmtree(stack.gym / "res")
        stack.restart("res")
        assert stack.digests() == {}
        assert stack.status().recovery.source == "nothing"
        stack.let_go(TURN)
        with pytest.raises(httpx.HTTPStatusError, match="503") as caught:
            standing.answers["gone"].result(PATIENCE)
        assert caught.value.response.headers[words.REFUSED] == "unknown session"
        assert compared(stack.run(standing.rows["gone"][1])) == standing.course.answer


def test_a_request_that_cannot_be_read_costs_the_replay_and_not_the_state(tmp_path: Path) -> None:
    with Stack(tmp_path, settings={"unbroken": {"log_states": True}}, **COUNTER.stack) as stack:
        standing = Standing(stack, COUNTER, "asked")
        stack.kill("res")
        spoil(stack.gym / "res", (standing.sessions["asked"], Began, last))
        assert standing.come_back()["asked"].tier in {"newest", "older"}
        standing.check("asked")


def test_a_rollout_of_which_an_agent_cannot_read_an_answer_begins_anew_in_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    """The model might answer otherwise the second time, and the old session has gone the way of the first answer."""
    with Stack(tmp_path, **COUNTER.stack) as stack:
        standing = Standing(stack, COUNTER, "spoilt", "whole")
        rollout, _ = standing.rows["spoilt"]
        stack.kill("agent")

        def both(lines: Any) -> Any:
            return lines[-2:]  # the model's second-last turn, and what the tool said to it

        spoil(stack.gym / "agent", (rollout, Answered, both))
        stack.let_go(TURN)
        stack.restart("agent")
        standing.check("whole")
        assert compared(standing.answers["spoilt"].result(PATIENCE)) == standing.course.answer
        again = [
            *range(TURN + 1),
            TURN,
        ]  # the spoilt one's from the beginning, and the other's that was under way
        undisturbed = [*range(COUNTER.turns)] * 2
        assert sorted(stack.model_calls()[standing.begun :]) == sorted([*undisturbed, *again])
        recovery = stack.status("agent").recovery
        assert [(one.id, one.tier) for one in recovery.listed] == [(rollout, "fresh")]
        assert {call.server for call in recovery.in_doubt} >= {MODEL}
        sessions = {session.id: session.digest for session in standing.rig.sessions(rollout)}
        left = sessions.pop(standing.sessions["spoilt"])  # as it was left
        assert left == standing.course.digests[TURN]
        assert list(sessions.values()) == [standing.course.digests[-1]]


def test_an_agent_whose_log_is_gone_leaves_the_old_sessions_alone(tmp_path: Path) -> None:
    with Stack(tmp_path, **COUNTER.stack) as stack:
        standing = Standing(stack, COUNTER, "gone")
        rollout, _ = standing.rows["gone"]
        stack.kill("agent")
        shutil.rmtree(stack.gym / "agent")
        stack.let_go(TURN)
        stack.restart("agent")
        assert compared(standing.answers["gone"].result(PATIENCE)) == standing.course.answer
        sessions = {session.id: session.digest for session in standing.rig.sessions(rollout)}
        assert sessions.pop(standing.sessions["gone"]) == standing.course.digests[TURN]
        assert list(sessions.values()) == [standing.course.digests[-1]]

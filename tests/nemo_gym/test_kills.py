"""Real servers under SIGKILL in the middle of episodes: what comes out is what comes out undisturbed.

The undisturbed twin runs on NeMo Gym's servers as they are, and each comparison that could be passed by a server without memory
has a test beside it in which there is none, and something else comes out.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.nemo_gym.dealt_blackjack import DEALT, deals, played
from tests.nemo_gym.episodes import CODE, EPISODES, TETRIS, WORKPLACE, Episode
from tests.nemo_gym.kills import KILLED, Course, Killed, Rig, compared, outputs
from tests.nemo_gym.stack import MODEL, PATIENCE, Stack, scripted
from tests.nemo_gym.waiting_tools import WAIT
from unbroken.repo.process import Process, identify

POINTS = [(name, turn) for name, episode in EPISODES.items() for turn in range(episode.turns)]
CHOSEN = {("counter", 2), ("weather", 2), ("tetris", 3), ("code", 3)}
"""Beside all points of workplace_assistant, these are tested every time; `make exactness` has all."""


def choice(values: list[Any], chosen: Any) -> list[Any]:
    return [value if chosen(value) else pytest.param(*value, marks=pytest.mark.exactness) for value in values]


class Bench:
    """The stacks of a module, one for each episode, started when they are needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rigs: dict[str, Rig] = {}
        self._courses: dict[str, Course] = {}
        self._plain: dict[str, dict[str, Any]] = {}

    def rig(self, name: str) -> Rig:
        if name not in self._rigs:
            self.close()  # one at a time
            episode = EPISODES[name]
            stack = Stack(self._directory / name, **episode.stack)
            stack.__enter__()
            self._rigs[name] = Rig(stack, episode)
        return self._rigs[name]

    def course(self, name: str) -> Course:
        """Return how the episode goes undisturbed."""
        if name not in self._courses:
            self._courses[name] = self.rig(name).undisturbed()
        return self._courses[name]

    def plain(self, name: str) -> dict[str, Any]:
        """Return what NeMo Gym's servers as they are answer."""
        if name not in self._plain:
            with plain_stack(self._directory / f"{name}-plain", EPISODES[name]) as stack:
                self._plain[name] = compared(
                    stack.run({**EPISODES[name].row, "_ng_rollout_id": "undisturbed"})
                )
        return self._plain[name]

    def close(self) -> None:
        for rig in self._rigs.values():
            rig.stack.__exit__(None, None, None)
        self._rigs.clear()


def plain_stack(directory: Path, episode: Episode) -> Stack:
    """Return a stack of servers as they are. An agent that a test brings has no other form; its environment has."""
    if "of_a_test" in episode.stack.values():
        return Stack(directory, settings={"unbroken": False}, **episode.stack)
    return Stack(directory, wrapped=False, **episode.stack)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.close()


def check(bench: Bench, name: str, turn: int, what: str, killed: Killed) -> None:
    """Compare all that there is to be compared."""
    course, episode = bench.course(name), EPISODES[name]
    assert killed.answer == bench.plain(name) == course.answer
    if not episode.replayed:  # there are processes in the state, which are never the same
        assert killed.digests == (course.digests[turn], course.digests[turn], course.digests[-1])
        assert all(course.digests)
    turns = list(range(episode.turns))
    assert list(course.calls) == turns
    if what == "res":
        assert list(killed.calls) == turns, "no agent has died: nothing is asked of the model again"
    else:
        assert sorted(killed.calls) == sorted([*turns, turn]), "the one that was under way, and no other"
        assert [(call.server, call.path) for call in killed.in_doubt] == [(MODEL, "/v1/responses")]
        assert killed.in_doubt[0].rollout.startswith(name)
    assert killed.interrupted == (), "the environment was not asked for anything just then"
    if what != "agent" and turn > 0:
        assert killed.recovered is not None
        tier, first = ("replayed", 1) if episode.replayed else ("newest", 0)
        redone = first + episode.calls_before(turn)
        assert (killed.recovered.tier, killed.recovered.redone, killed.recovered.reasons) == (
            tier,
            redone,
            (),
        )


def is_chosen(case: tuple[Any, ...]) -> bool:
    name, turn, what = case
    return (name == "workplace" and 0 < turn < 5) or ((name, turn) in CHOSEN and what == "all")


@pytest.mark.parametrize(
    ("name", "turn", "what"),
    choice([(name, turn, what) for name, turn in POINTS for what in KILLED], is_chosen),
)
def test_a_kill_changes_nothing(bench: Bench, name: str, turn: int, what: str) -> None:
    check(bench, name, turn, what, bench.rig(name).killed(turn, what))


@pytest.mark.parametrize("name", ["counter", *(pytest.param(name, marks=pytest.mark.exactness) for name in ("workplace", "weather", "tetris"))])  # fmt: skip
def test_an_agent_that_runs_into_a_missing_server_waits_for_it(bench: Bench, name: str) -> None:
    check(bench, name, 2, "res", bench.rig(name).killed(2, "res", missed=True))


@pytest.mark.parametrize("name", ["tetris", *(pytest.param(name, marks=pytest.mark.exactness) for name in ("counter", "workplace", "weather", "code"))])  # fmt: skip
def test_a_later_attempt_goes_on_where_the_earlier_one_was(bench: Bench, name: str) -> None:
    """Agents hand the row with the number of the attempt on to the environment: it is the same call all the same."""
    check(bench, name, 2, "agent", bench.rig(name).asked_again(2))


@pytest.mark.parametrize("what", KILLED)
def test_servers_that_are_supervised_come_back_by_themselves(tmp_path: Path, bench: Bench, what: str) -> None:
    with Stack(tmp_path, supervised=True, **WORKPLACE.stack) as stack:
        killed = Rig(stack, WORKPLACE).killed(3, what, supervised=True)
        restarted = {"all": {"res": 1, "agent": 1, MODEL: 1}}.get(what, {what: 1})
        assert stack.servers.restarted == restarted
    check(bench, "workplace", 3, what, killed)


TOOLS = {"email_send_email": 0, "calendar_update_event": 3}
"""Tools that change a session, and the turn in which they are called."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Rig, Path]]:
    directory = tmp_path_factory.mktemp("slow")
    waiting = directory / "waiting"
    waiting.mkdir()
    resources = "waiting_tools:WorkbenchResourcesServer"
    with Stack(directory, resources=resources, environment={WAIT: str(waiting)}) as stack:
        yield Rig(stack, WORKPLACE), waiting


@pytest.mark.parametrize("what", KILLED)
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize(
    "tool", ["email_send_email", pytest.param("calendar_update_event", marks=pytest.mark.exactness)]
)
def test_a_tool_that_was_at_work_does_it_once(
    bench: Bench, slow: tuple[Rig, Path], tool: str, where: str, what: str
) -> None:
    rig, waiting = slow
    killed = rig.killed_in(tool, where, waiting, what)
    course = bench.course("workplace")
    assert killed.answer == bench.plain("workplace")
    assert killed.digests[-1] == course.digests[-1]
    assert killed.calls == course.calls, "the model was not at work"
    expected = [f"/{tool}"] if what != "agent" else []
    assert [call.path for call in killed.interrupted] == expected
    if what != "res":
        assert [(call.server, call.path) for call in killed.in_doubt] == [("res", f"/{tool}")]


@pytest.mark.parametrize("name", ["workplace", *(pytest.param(name, marks=pytest.mark.exactness) for name in ("counter", "code"))])  # fmt: skip
def test_a_server_that_forgets_gives_plausible_wrong_data(tmp_path: Path, bench: Bench, name: str) -> None:
    episode = EPISODES[name]
    reward, said = episode.differs
    with plain_stack(tmp_path, episode) as stack:
        wrong = compared(forgetting(stack, episode, 2))
    right = bench.plain(name)
    assert right["reward"] == 1.0
    assert wrong["reward"] == reward, "a reward of 1.0 proves nothing"
    assert said in outputs(wrong) and said not in outputs(right)
    assert wrong["response"]["usage"] == right["response"]["usage"]


@pytest.mark.exactness
def test_over_mcp_a_server_that_forgets_only_loses_the_reward(tmp_path: Path, bench: Bench) -> None:
    episode = EPISODES["weather"]
    with plain_stack(tmp_path, episode) as stack:
        wrong = compared(forgetting(stack, episode, 2))
    right = bench.plain("weather")
    assert (right["reward"], wrong["reward"]) == (1.0, 0.0)
    assert outputs(wrong) == outputs(right)


@pytest.mark.exactness
def test_a_board_that_was_forgotten_ends_the_rollout(tmp_path: Path) -> None:
    with plain_stack(tmp_path, TETRIS) as stack, pytest.raises(httpx.HTTPStatusError, match="500"):
        forgetting(stack, TETRIS, 2)


def forgetting(stack: Stack, episode: Episode, turn: int) -> dict[str, Any]:
    """Roll out on servers as they are; the one with the sessions is killed and comes back with nothing."""
    stack.hold(turn)
    answer = stack.run_later(episode.row)
    stack.await_turn(turn)
    stack.kill("res")
    stack.restart("res")
    stack.let_go(turn)
    return answer.result(PATIENCE)


@pytest.mark.parametrize("what", ["res", pytest.param("all", marks=pytest.mark.exactness)])
def test_processes_of_sessions_go_with_their_server_and_come_back_with_it(bench: Bench, what: str) -> None:
    rig = bench.rig("code")
    stack, turn = rig.stack, 3
    rollout, row = rig.next_row()
    before = len(stack.model_calls())
    stack.hold(turn)
    answer = stack.run_later(row)
    rig.await_calls(before + turn + 1)
    (worker,) = workers(stack)
    stack.kill(what)
    assert worker.wait(PATIENCE), "nobody else would end it"
    stack.restart(what)
    stack.digests()  # answered once the server has restored itself
    (again,) = workers(stack)
    recovery = stack.status().recovery
    assert [one.redone for one in recovery.listed if one.id == rig.sessions(rollout)[0].id] == [
        1 + CODE.calls_before(turn)
    ]
    stack.let_go(turn)
    assert compared(answer.result(PATIENCE)) == bench.plain("code")
    assert again.wait(PATIENCE) and not workers(stack), "verified sessions need none"


def workers(stack: Stack) -> list[Process]:
    """Return the processes that the resources server has started."""
    server = stack.servers.pids["res"]
    tasks = Path(f"/proc/{server}/task").iterdir()
    return [identify(int(child)) for task in tasks for child in (task / "children").read_text().split()]


@pytest.fixture(scope="module")
def casino(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Stack, Path]]:
    directory = tmp_path_factory.mktemp("casino")
    dealt = directory / "dealt"
    with Stack(
        directory,
        resources="dealt_blackjack:BlackjackEnv",
        agent="gymnasium_agent",
        environment={DEALT: str(dealt)},
    ) as stack:
        yield stack, dealt


HIT, STAND = "<action>hit</action>", "<action>stand</action>"
HANDS = [(hits, what) for hits in range(4) for what in KILLED]


@pytest.mark.parametrize(("hits", "what"), choice(HANDS, lambda case: case == (1, "all")))
def test_an_unseeded_hand_of_blackjack_is_played_to_its_end(
    casino: tuple[Stack, Path], hits: int, what: str
) -> None:
    """The cards follow from nothing but the state of the server: nobody can draw them again."""
    stack, dealt = casino
    actions = [HIT] * hits + [HIT, STAND]
    rig = Rig(stack, Episode(name=f"hand-{hits}-{what}", row=scripted(actions), turns=len(actions), stack={}, differs=(0.0, "")))  # fmt: skip
    rollout, answer, before = lucky(rig, hits)
    (session,) = rig.sessions(rollout)
    stack.kill(what)
    stack.restart(what)
    if what != "res":
        rig.await_calls(before + hits + 2)
    assert rig.digest(rollout) == session.digest != ""
    stack.let_go(hits)
    result = answer.result(PATIENCE)
    (deal,) = deals(dealt, session.id)  # it was not reset again
    reward, seen, info = played(deal, actions)
    shown = [item["content"] for item in result["response"]["output"] if item.get("role") == "user"]
    assert (result["reward"], result["info"]) == (reward, info)
    assert shown == [seeing for seeing in seen if seeing]
    extra = [] if what == "res" else [hits]
    assert sorted(stack.model_calls()[before:]) == sorted([*range(len(seen)), *extra])


def lucky(rig: Rig, hits: int) -> tuple[str, Future[dict[str, Any]], int]:
    """Begin rollouts until one is not over after so many cards; the model stands at its next turn."""
    stack = rig.stack
    stack.hold(hits)
    while True:
        rollout, row = rig.next_row()
        before = len(stack.model_calls())
        answer = stack.run_later(row)
        while not answer.done() and len(stack.model_calls()) < before + hits + 1:
            time.sleep(0.01)
        if not answer.done():
            return rollout, answer, before


@pytest.mark.exactness
def test_another_server_deals_other_cards(tmp_path: Path) -> None:
    """C of the test above: hands follow from no request, and a server that has lost one makes up a game without cards."""
    first: list[str] = []
    for name in ("one", "another"):
        with Stack(tmp_path / name, resources="blackjack", agent="gymnasium_agent", wrapped=False) as stack:
            first.append(str([stack.run(scripted([STAND]))["responses_create_params"] for _ in range(4)]))
            stack.hold(0)
            answer = stack.run_later(scripted([STAND]))
            calls = len(stack.model_calls())
            stack.await_turn(0, count=calls + 1 if stack.model_calls().count(0) == calls else calls)
            stack.kill("res")
            stack.restart("res")
            stack.let_go(0)
            lost = answer.result(PATIENCE)
            assert (lost["info"]["player"], lost["info"]["player_value"]) == ("[]", 0)
    assert first[0] != first[1]

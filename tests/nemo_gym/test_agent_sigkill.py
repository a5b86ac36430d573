"""An agent's process under SIGKILL: at each turn of the model, and all servers with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.stack import MODEL, Stack, counter

STAMPED: dict[str, Any] = {"_ng_rollout_id": "r-1", "_ng_attempt_index": 0}
NUMBERED: dict[str, Any] = {"_ng_task_index": 4, "_ng_rollout_index": 0}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with Stack(tmp_path_factory.mktemp("undisturbed"), wrapped=False) as stack:
        return stack.run(counter(4, 5))


def same(result: dict[str, Any], undisturbed: dict[str, Any]) -> bool:
    return all(result[key] == undisturbed[key] for key in ("reward", "response"))


@pytest.mark.parametrize("stamp", [STAMPED, NUMBERED])
@pytest.mark.parametrize(("turn", "killed"), [(0, "agent"), (2, "agent"), (1, "all"), (3, "all")])
def test_a_rollout_goes_on_where_its_agent_was_killed(
    tmp_path: Path, undisturbed: dict[str, Any], turn: int, killed: str, stamp: dict[str, Any]
) -> None:
    with Stack(tmp_path) as stack:
        stack.hold(turn)
        answer = stack.run_later({**counter(4, 5), **stamp})
        stack.await_turn(turn)
        stack.kill(killed)
        stack.let_go(turn)
        stack.restart(killed)
        result = answer.result(timeout=300)
        assert same(result, undisturbed)
        assert sorted(stack.model_calls()) == sorted(
            [0, 1, 2, 3, turn]
        )  # the one that was under way, and no other
        status = stack.status("agent")
        (in_doubt,) = status.recovery.in_doubt
        assert (in_doubt.server, in_doubt.path) == (MODEL, "/v1/responses")
        assert (status.model_calls, status.unused) == (4 - turn, ())
        assert len(stack.digests()) == 1


def test_a_result_that_nobody_has_got_is_there_after_a_kill(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        first = stack.run({**counter(4, 5), **STAMPED})
        stack.kill("agent")
        stack.restart("agent")
        assert stack.run({**counter(4, 5), **STAMPED}) == first
        assert stack.model_calls() == [0, 1, 2, 3]
        assert stack.status("agent").recovery.rollouts == 1


def test_without_the_journal_the_whole_rollout_is_generated_again(tmp_path: Path) -> None:
    with Stack(tmp_path, wrapped=False) as stack:
        stack.hold(2)
        answer = stack.run_later({**counter(4, 5), **STAMPED})
        stack.await_turn(2)
        stack.kill("agent")
        stack.let_go(2)
        stack.restart("agent")
        answer.result(timeout=300)
        assert stack.model_calls() == [0, 1, 2, 0, 1, 2, 3]

"""H5: an agent with a transcript and a workspace of its own cannot be resumed. It begins anew, and no tool acts twice in a workspace.

That is declared: docs/nemo-gym.md names agents that bypass `server_client` among what is not exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.coding_agent import WORKSPACES, effects
from tests.nemo_gym.stack import PATIENCE, Stack, call, scripted
from unbroken.nemo_gym import Gym, Rollout

DONE = ["one", "two", "three", "four"]
"""What the four turns do in the workspace. Its reward is 1 if each of them was done once."""
ROW: dict[str, Any] = scripted(
    [*([call("write", text=text)] for text in DONE), "finished"],
    initial_count=0,
    expected_count=len(DONE),
)
TURNS = len(DONE) + 1


def _stack(directory: Path, cls: str) -> Stack:
    workspaces = directory / "workspaces"
    workspaces.mkdir()
    return Stack(
        directory,
        agent="of_a_test",
        agent_settings={"unbroken": {"class": f"coding_agent:{cls}"}},
        environment={WORKSPACES: str(workspaces)},
    )


def _killed_after(stack: Stack, turn: int) -> Rollout:
    """Let a trainer ask for a rollout, and kill the agent when so many turns have done their work."""
    with Gym(stack.addresses, agent="agent") as gym:
        stack.hold(turn)
        gym.submit([ROW])
        stack.await_turn(turn)
        stack.kill("agent")
        stack.restart("agent")
        stack.let_go(turn)
        (taken,) = gym.take(1, timeout=PATIENCE)
        return taken


@pytest.mark.parametrize("turn", range(1, TURNS))
def test_after_a_kill_it_begins_anew_and_no_tool_acts_twice(tmp_path: Path, turn: int) -> None:
    with _stack(tmp_path, "CodingAgent") as stack:
        taken = _killed_after(stack, turn)
        assert (taken.outcome, taken.reward, taken.attempt) == ("completed", 1.0, 1)
        found = sorted((effects(w) for w in (tmp_path / "workspaces").iterdir()), key=len)
        assert sorted(found) == sorted([DONE[:turn], DONE]), "what the dead one did stays where it did it"
        assert sorted(stack.model_calls()) == sorted([*range(turn + 1), *range(TURNS)])
        assert len(stack.digests()) == 1, "its session was not begun twice: that call was seen"


def test_one_that_comes_back_to_its_old_workspace_does_it_twice_and_gets_no_reward(tmp_path: Path) -> None:
    """The test can fail."""
    with _stack(tmp_path, "Reusing") as stack:
        taken = _killed_after(stack, 2)
        assert (taken.outcome, taken.reward) == ("completed", 0.0)
        assert effects(tmp_path / "workspaces") == [*DONE[:2], *DONE]

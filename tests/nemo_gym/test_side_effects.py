"""H3: tools that do something outside of their session do it once, although agent and server are killed in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.appending_tools import LINES
from tests.nemo_gym.kills import KILLED
from tests.nemo_gym.stack import PATIENCE, Stack, counter

ADDED = [1, 2, 3, 4, 5]
"""What the five turns add, and what the file has to hold in the end."""
AFTER = 3
"""So many have been carried out when the kill comes."""


def _stack(directory: Path, *, log_states: bool = False, journal: bool = True) -> Stack:
    return Stack(
        directory,
        resources="appending_tools:AppendingServer",
        settings={"unbroken": {"class": "appending_tools:AppendingServer", "log_states": log_states}},
        agent_settings=None if journal else {"unbroken": False},
        environment={LINES: str(directory / "lines")},
    )


def _lines(stack: Stack) -> list[int]:
    return [int(line) for line in (stack.directory / "lines").read_text().splitlines()]


def _interrupted(stack: Stack, what: str) -> dict[str, Any]:
    """Roll out five turns, and kill after the third."""
    stack.hold(AFTER)
    answer = stack.run_later({**counter(*ADDED), "_ng_rollout_id": "r-1"})
    stack.await_turn(AFTER)
    assert _lines(stack) == ADDED[:AFTER]
    stack.kill(what)
    stack.restart(what)
    stack.let_go(AFTER)
    return answer.result(PATIENCE)


@pytest.mark.parametrize("what", KILLED)
def test_five_turns_leave_five_lines_whatever_is_killed_after_the_third(tmp_path: Path, what: str) -> None:
    with _stack(tmp_path, log_states=True) as stack:
        assert _interrupted(stack, what)["reward"] == 1.0
        assert _lines(stack) == ADDED, "the first three turns were not called again"
        assert len(stack.digests()) == 1, "the agent's cookie still names its session"
        again = [] if what == "res" else [AFTER]
        assert sorted(stack.model_calls()) == sorted([*range(7), *again])


def test_an_agent_that_dies_needs_no_state_of_the_server(tmp_path: Path) -> None:
    with _stack(tmp_path) as stack:
        assert _interrupted(stack, "agent")["reward"] == 1.0
        assert _lines(stack) == ADDED


def test_without_a_state_after_each_call_a_killed_server_executes_again_what_came_since_the_last(
    tmp_path: Path,
) -> None:
    """What `log_states` is for. The session is right all the same: its calls are executed from its seeded state."""
    with _stack(tmp_path) as stack:
        assert _interrupted(stack, "res")["reward"] == 1.0
        assert _lines(stack) == [*ADDED[:AFTER], *ADDED]
        (back,) = stack.status().recovery.listed
        assert (back.tier, back.redone) == ("newest", AFTER)


def test_an_agent_as_it_is_begins_at_the_first_turn(tmp_path: Path) -> None:
    """The test can fail: eight lines in place of five."""
    with _stack(tmp_path, log_states=True, journal=False) as stack:
        assert _interrupted(stack, "agent")["reward"] == 1.0
        assert _lines(stack) == [*ADDED[:AFTER], *ADDED]
        assert len(stack.digests()) == 2

"""The layered document of real servers: what it says of a session is what the session did. And a session that moves."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from stack import PATIENCE, Stack, counter

from unbroken import Every, Run
from unbroken.adapters.nemo_gym import protocol
from unbroken.cli import main
from unbroken.nemo_gym import Gym


def unbroken(*words: object) -> str:
    """Run the command, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    assert code == 0, err.getvalue()
    return out.getvalue()


def consistent(state: protocol.SessionState) -> int:
    """Check that a session holds what its calls amount to; return how many calls there were."""
    total = 0
    for call in state.tool_history:
        if call.name == "seed_session":
            total = call.arguments["initial_count"]
        elif call.name == "increment_counter":
            total += call.arguments["count"]
        elif call.name == "get_counter_value":
            assert call.result == {"count": total}
    (held,) = state.context.values()
    assert held == total
    assert [call.revision for call in state.tool_history] == list(range(1, len(state.tool_history) + 1))
    return len(state.tool_history)


def test_the_document_of_a_training_says_what_its_sessions_did(tmp_path: Path) -> None:
    rows = [counter(2, 4, 6, start=start) for start in (3, 5)]
    for row in rows:
        row["responses_create_params"]["temperature"] = 0.5
    with Stack(tmp_path, delay=0.05) as stack:
        gym = Gym(stack.addresses, agent="agent")
        run = Run(root=tmp_path / "runs", job="train", every=Every(steps=1), keep_last=9, quiet=True)
        run.track(gym=gym)
        rewards: list[float | None] = []
        run.scratch(rewards)
        for step in run.steps(3):
            run.wait()  # or the next save may be left out, while this one is written
            if step == 0:
                gym.submit(rows)
                stack.await_turn(1)  # from here on a session has a history
            if step == 1:
                rewards += [rollout.reward for rollout in gym.take(1, timeout=PATIENCE)]
        rewards += [rollout.reward for rollout in gym.take(1, timeout=PATIENCE)]
        run.close()
        gym.close()
        assert rewards == [1.0, 1.0]
        place = tmp_path / "runs" / "train"
        states: list[protocol.GymState] = []
        for step in (1, 2):
            states.append(state := protocol.read(unbroken("gym", "export", f"{place}@{step}").encode()))
            assert state.metadata.total_steps == step
            assert state.environment.env_id == "res"
            assert state.resources["res"].connection_state["capability"] == "snapshot"
            assert "increment_counter" in {tool["name"] for tool in state.resources["res"].tool_registry}
            assert sum(consistent(session) for session in state.environment.session_states.values()) > 1
        assert states[0].agents["agent"].exploration_params == {"temperature": 0.5}
        live = json.loads(unbroken("gym", "sessions", stack.addresses["res"], "--digests", "--json"))[
            "sessions"
        ]
        saved = json.loads(unbroken("gym", "sessions", f"{place}@2", "--json"))["sessions"]
        assert {held["rollout"] for held in saved} <= {"0-0", "0-1"}
        assert {held["session"] for held in live} <= {held["session"] for held in saved}
        shown = unbroken("show", place, "--component", "gym")
        assert "StatefulCounterResourcesServer" in shown


def test_a_session_moves_to_another_process_while_its_agent_waits(tmp_path: Path) -> None:
    extra: dict[str, Any] = {
        "res_2": {
            "resources_servers": {"example_session_state_mgmt": {"entrypoint": "app.py", "domain": "agent"}}
        }
    }
    with Stack(tmp_path, extra=extra) as stack:
        stack.hold(2)
        answer = stack.run_later(counter(2, 4, 6))
        stack.await_turn(2)
        source, target = stack.addresses["res"], stack.addresses["res_2"]
        ((session, digest),) = stack.digests().items()
        moved = json.loads(unbroken("gym", "migrate", session, "--from", source, "--to", target, "--json"))
        assert (moved["from"], moved["to"]) == (source, target)
        (held,) = json.loads(unbroken("gym", "sessions", target, "--digests", "--json"))["sessions"]
        assert (held["session"], held["digest"], held["status"], held["calls"]) == (
            session,
            digest,
            "open",
            3,
        )
        stack.let_go(2)
        assert answer.result()["reward"] == 1.0
        (after,) = json.loads(unbroken("gym", "sessions", target, "--json"))["sessions"]
        assert (
            after["calls"] == 6
        )  # the last addition, the look at the sum and the verification were made there
        assert stack.model_calls() == [0, 1, 2, 3, 4]

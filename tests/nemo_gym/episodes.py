"""Episodes on NeMo Gym's own servers that are the same each time: what tests kill and compare.

Every one of them has results that depend on what its session was told before, so that a server that has forgotten it gives
itself away: by its outputs, if not by its reward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.nemo_gym.stack import call, counter, scripted


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A row, what `Stack` needs for it, and how often the model is asked.

    `differs` is what a rollout gives whose resources server was killed and came back with nothing, unwrapped: the reward,
    and a part of what its session answered then.
    """

    name: str
    row: Mapping[str, Any]
    turns: int
    stack: Mapping[str, Any]
    differs: tuple[float, str]
    replayed: bool = False
    """Whether a session comes back by its calls alone."""

    def calls_before(self, turn: int) -> int:
        """Return how many calls of the environment come before the model is asked for a turn, without the first."""
        script = json.loads(self.row["responses_create_params"]["input"][0]["content"])["script"]
        return sum(len(step) if isinstance(step, list) else 1 for step in script[:turn])


COUNTER = Episode(
    name="counter",
    row=counter(4, 5, 6),
    turns=5,
    stack={"resources": "example_session_state_mgmt"},
    differs=(0.0, '{"count":6}'),
)

_MAIL = {"recipient": "raj.patel@atlas.com", "subject": "Zebra crossing", "body": "striped"}
_CUSTOMER = {"customer_name": "Zed", "assigned_to_email": "raj.patel@atlas.com", "status": "Lead"}
_TURNS: list[list[dict[str, Any]]] = [
    [call("email_send_email", **_MAIL)],
    [call("email_search_emails", query="Zebra"), call("customer_relationship_manager_add_customer", **_CUSTOMER)],
    [call("customer_relationship_manager_search_customers", customer_name="Zed")],
    [call("calendar_update_event", event_id="00000252", field="event_name", new_value="Zebra forum")],
    [call("calendar_search_events", query="Zebra")],
]  # fmt: skip
_CHANGES = ("email_send_email", "customer_relationship_manager_add_customer", "calendar_update_event")

WORKPLACE = Episode(
    name="workplace",
    row=scripted(
        [*_TURNS, "done"],
        id=0,
        category="of a test",
        environment_name="workplace_assistant",
        ground_truth=[
            {"name": made["name"], "arguments": json.dumps(made["args"])}
            for turn in _TURNS
            for made in turn
            if made["name"] in _CHANGES
        ],
    ),
    turns=6,
    stack={"resources": "workplace_assistant"},
    differs=(1.0, "Session not initialized"),  # its verification looks at the calls only
)

WEATHER = Episode(
    name="weather",
    row=scripted(
        [
            [call("get_weather", city="Paris")],
            [call("get_weather", city="Rome"), call("get_weather", city="Oslo")],
            [call("get_weather", city="Bern")],
            "The weather in Paris is sunny and 72 F.",
        ],
        verifier_metadata={"expected_city": "Paris"},
    ),
    turns=4,
    stack={
        "resources": "example_mcp_weather",
        "agent": "of_a_test",
        "agent_settings": {"unbroken": {"class": "mcp_agent:MCPAgent"}},
    },
    differs=(0.0, ""),
)

_MOVES = ("Left", "Down", "Right", "Down", "Right", "Left")

TETRIS = Episode(
    name="tetris",
    # With one shape only the board follows from the seed: the server draws shapes before it is seeded as well.
    row=scripted([f"<action>{move}</action>" for move in _MOVES], seed=3, box_type=1),
    turns=len(_MOVES),
    stack={
        "resources": "grl_tetris",
        "agent": "gymnasium_agent",
        "agent_settings": {"max_steps": len(_MOVES)},
    },
    differs=(0.0, "Session not initialized"),
)

CODE = Episode(
    name="code",
    row=scripted(
        [
            [call("execute_python", code="x = [20]\nprint(x)")],
            [call("execute_python", code="x.append(x[0] + 1)\nprint(x)")],
            [call("execute_python", code="y = sum(x)\nprint(y)"), call("execute_python", code="print(y, len(x))")],
            [call("execute_python", code="print('\\\\boxed{' + str(y) + '}')")],
            "The answer is \\boxed{41}.",
        ],
        expected_result="41",
    ),
    turns=5,
    stack={"resources": "math_with_code"},
    differs=(1.0, "is not defined"),  # the model says the answer by heart
    replayed=True,
)  # fmt: skip

EPISODES = {episode.name: episode for episode in (COUNTER, WORKPLACE, WEATHER, TETRIS, CODE)}

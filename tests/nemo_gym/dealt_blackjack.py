"""The server of blackjack, which writes down what it has dealt, and the state of its unseeded generator then.

From that a test can play the same game to its end, whatever has happened to the server since.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.blackjack.app import BlackjackEnv as AsItIs

DEALT = "UNBROKEN_TEST_DEALT"
"""The file that it writes to."""


class BlackjackEnv(AsItIs):
    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> Any:
        answer = await super().reset(metadata, session_id)
        _write_down(str(session_id), self.session_state[session_id])
        return answer


def _write_down(session: str, state: dict[str, Any]) -> None:
    version, numbers, gauss = state["rng"].getstate()
    line = {
        "session": session,
        "player": state["player"],
        "dealer": state["dealer"],
        "generator": [version, list(numbers), gauss],
    }
    with open(os.environ[DEALT], "a") as dealt:
        dealt.write(json.dumps(line) + "\n")


def deals(path: Path, session: str) -> list[dict[str, Any]]:
    """Return what was dealt to a session: a list of one, unless it was reset again."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["session"] == session]


def played(dealt: dict[str, Any], actions: Sequence[str]) -> tuple[float, list[str | None], dict[str, Any]]:
    """Play a game as it was dealt; return the reward, what was seen after each action, and the last step's info."""
    generator = random.Random()
    version, numbers, gauss = dealt["generator"]
    generator.setstate((version, tuple(numbers), gauss))
    env = AsItIs.model_construct(session_state={
        "s": {"player": list(dealt["player"]), "dealer": list(dealt["dealer"]), "rng": generator}
    })  # fmt: skip
    total, seen, info = 0.0, list[str | None](), dict[str, Any]()
    for action in actions:
        seeing, reward, over, _, info = asyncio.run(env.step(_said(action), {}, "s"))
        total += reward
        seen.append(seeing)
        if over:
            break
    return total, seen, info


def _said(action: str) -> NeMoGymResponse:
    content = {"type": "output_text", "text": action, "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [content]}
    return NeMoGymResponse.model_validate({
        "id": "r", "created_at": 0, "model": "m", "object": "response", "output": [message],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    })  # fmt: skip

"""A model server that says what a script in the first message of the user says: deterministic, and without state.

The script is a list of turns: a list of tool calls `{"name", "args"}`, or a text. The turn is found in the conversation.
Each call is written to `call_log`, which is the oracle for "nothing was generated twice".
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from fastapi import Body
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)


class ScriptedModelConfig(BaseResponsesAPIModelConfig):
    call_log: str = ""
    """A file to which every call adds a line: the turn."""
    delay: float = 0.0
    """Seconds that an answer takes."""
    hold: str = ""
    """A directory. While it holds a file named after the turn, that turn is not answered."""


class ScriptedModel(SimpleResponsesAPIModel):
    config: ScriptedModelConfig

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        items: list[dict[str, Any]] = [i if isinstance(i, dict) else i.model_dump() for i in body.input]
        script: list[Any] = json.loads(next(i for i in items if i.get("role") == "user")["content"])["script"]
        turn = _turn(script, items)
        if self.config.call_log:
            with open(self.config.call_log, "a") as log:
                log.write(f"{turn}\n")
        while self.config.hold and os.path.exists(os.path.join(self.config.hold, str(turn))):
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.config.delay)
        step = script[turn] if turn < len(script) else "done"
        usage = {
            "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        answer = {
            "id": f"resp_{turn}", "created_at": 0, "model": "scripted", "object": "response", "output": _output(step, turn),
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
        }  # fmt: skip
        return NeMoGymResponse.model_validate(answer)


def _turn(script: list[Any], items: list[dict[str, Any]]) -> int:
    if all(isinstance(step, str) for step in script):  # environments that read actions out of texts
        return sum(item.get("role") == "assistant" for item in items)
    calls = sum(item.get("type") == "function_call" for item in items)
    turn = seen = 0
    while turn < len(script) and isinstance(script[turn], list) and seen + len(script[turn]) <= calls:
        seen += len(script[turn])
        turn += 1
    return turn


def _output(step: Any, turn: int) -> list[dict[str, Any]]:
    if isinstance(step, str):
        text = {"type": "output_text", "text": step, "annotations": []}
        return [
            {
                "type": "message",
                "role": "assistant",
                "id": f"msg_{turn}",
                "status": "completed",
                "content": [text],
            }
        ]
    return [
        {
            "type": "function_call", "id": f"fc_{turn}_{k}", "call_id": f"call_{turn}_{k}", "status": "completed",
            "name": call["name"], "arguments": json.dumps(call["args"]),
        }
        for k, call in enumerate(step)
    ]  # fmt: skip


if __name__ == "__main__":
    ScriptedModel.run_webserver()

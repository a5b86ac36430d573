"""A coding agent as the command lines are that people put behind NeMo Gym: a loop, a client and tools of its own.

Transcript and workspace are files that nobody else knows of. Its model is asked, and its tool used, past `server_client`; only
the session in which its work is judged is not. `CodingAgent` begins in an empty workspace, as such agents do;
`Reusing` comes back to that of an earlier attempt, which is the mistake.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from fastapi import Request
from nemo_gym.base_responses_api_agent import Body
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status
from responses_api_agents.simple_agent.app import (
    SimpleAgent,
    SimpleAgentRunRequest,
    SimpleAgentVerifyResponse,
)

WORKSPACES = "UNBROKEN_TEST_WORKSPACES"


class CodingAgent(SimpleAgent):
    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        row = body.model_dump()
        seeded = await self._post("/seed_session", row)
        workspace = self._workspace()
        answer = await self._work(workspace, row["responses_create_params"])
        lines = len(effects(workspace))
        await self._post("/increment_counter", {"count": lines}, cookies=seeded.cookies)
        verified = await self._post("/verify", {**row, "response": answer}, cookies=seeded.cookies)
        return SimpleAgentVerifyResponse.model_validate(await get_response_json(verified))

    def _workspace(self) -> Path:
        return Path(tempfile.mkdtemp(dir=os.environ[WORKSPACES]))

    async def _work(self, workspace: Path, asked: dict[str, Any]) -> Any:
        """The loop of such a command line: ask, do, write down."""
        part: Any = self.server_client.global_config_dict[self.config.model_server.name]
        (model,) = part["responses_api_models"].values()
        address = f"http://{model['host']}:{model['port']}/v1/responses"
        said: list[Any] = []
        async with aiohttp.ClientSession() as client:
            while True:
                response = await client.post(address, json={**asked, "input": [*asked["input"], *said]})
                answer = await response.json()
                said += answer["output"]
                calls = [item for item in answer["output"] if item["type"] == "function_call"]
                for made in calls:
                    act(workspace, json.loads(made["arguments"])["text"])
                    said.append(
                        {"type": "function_call_output", "call_id": made["call_id"], "output": "done"}
                    )
                (workspace / "transcript.json").write_text(json.dumps(said))
                if not calls:
                    return {**answer, "output": said}

    async def _post(self, path: str, body: Any, **options: Any) -> Any:
        response = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=body, **options
        )
        await raise_for_status(response)
        return response

    async def responses(
        self,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008 - fastapi's way of saying what a body is
    ) -> NeMoGymResponse:
        raise NotImplementedError


class Reusing(CodingAgent):
    def _workspace(self) -> Path:
        return Path(os.environ[WORKSPACES])


def act(workspace: Path, text: str) -> None:
    """The tool: it does what can be done twice."""
    with open(workspace / "effects", "a") as done:
        done.write(f"{text}\n")


def effects(workspace: Path) -> list[str]:
    """Return what tools have done in a workspace."""
    done = workspace / "effects"
    return done.read_text().split() if done.exists() else []

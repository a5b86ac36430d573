"""An agent whose tools are those of a resources server that speaks MCP, as NeMo Gym has none that runs by itself."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from nemo_gym.base_responses_api_agent import Body
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status
from responses_api_agents.simple_agent.app import (
    SimpleAgent,
    SimpleAgentRunRequest,
    SimpleAgentVerifyResponse,
)

SPEAKS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}


class MCPAgent(SimpleAgent):
    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        row = body.model_dump()
        seeded = await self._post(self.config.resources_server.name, "/seed_session", row)
        token: dict[str, str] = (await get_response_json(seeded))["mcp"]["headers"]
        asked: list[Any] = list(row["responses_create_params"]["input"])
        outputs: list[Any] = []
        while True:
            model = {**row["responses_create_params"], "input": asked + outputs}
            answer = await get_response_json(
                await self._post(self.config.model_server.name, "/v1/responses", model)
            )
            outputs += answer["output"]
            calls = [item for item in answer["output"] if item["type"] == "function_call"]
            for made in calls:
                outputs.append(await self._tool(made, token))
            if not calls:
                break
        verify = {**row, "response": {**answer, "output": outputs}}
        verified = await self._post(
            self.config.resources_server.name, "/verify", verify, cookies=seeded.cookies
        )
        return SimpleAgentVerifyResponse.model_validate(await get_response_json(verified))

    async def _tool(self, made: dict[str, Any], token: dict[str, str]) -> dict[str, Any]:
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": made["name"], "arguments": json.loads(made["arguments"])},
        }
        answer = await self._post(
            self.config.resources_server.name, "/mcp", message, headers={**SPEAKS, **token}
        )
        said = (await answer.content.read()).decode()
        return {"type": "function_call_output", "call_id": made["call_id"], "output": said}

    async def _post(self, server: str, path: str, body: Any, **options: Any) -> Any:
        response = await self.server_client.post(server_name=server, url_path=path, json=body, **options)
        await raise_for_status(response)
        return response

    async def responses(
        self,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008 - fastapi's way of saying what a body is
    ) -> NeMoGymResponse:
        raise NotImplementedError

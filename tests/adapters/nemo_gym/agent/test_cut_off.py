"""A row that does not arrive whole is not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.serving.asgi import Message


def test_a_run_that_is_cut_off_in_its_body_is_none(tmp_path: Path) -> None:
    ran: list[Any] = []

    async def act(client: Any, request: Any) -> Any:
        del client
        ran.append(request)
        return {"reward": 1.0}

    async def answer(made: SimpleNamespace) -> Said:
        raise AssertionError(made)

    async def scenario() -> None:
        toy = Toy(tmp_path, act, answer)
        arriving: list[Message] = [
            {"type": "http.request", "body": b'{"_ng_rollout_id": "r"', "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Message:
            return arriving.pop(0)

        async def send(message: Message) -> None:
            raise AssertionError(message)

        headers = [(words.ROLLOUT.encode(), b"r")]
        scope = {"type": "http", "method": "POST", "path": "/run", "headers": headers, "query_string": b""}
        await toy.app(scope, receive, send)
        assert not ran
        assert not toy.agent.executions
        assert (await toy.run(row())).status == 200
        assert len(ran) == 1
        await toy.agent.close()

    asyncio.run(scenario())

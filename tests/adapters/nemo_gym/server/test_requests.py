"""Requests that arrive in part, or that nobody would send who means well."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.serving.asgi import Message, Scope

from .tiny import Running, running


async def _cut_off(server: Running, path: str, part: bytes, headers: dict[str, str]) -> list[Message]:
    """Begin a request whose client goes away before the end of its body; return what was answered."""
    arriving: list[Message] = [
        {"type": "http.request", "body": part, "more_body": True},
        {"type": "http.disconnect"},
    ]
    answered: list[Message] = []

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        answered.append(message)

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }
    await server.app(scope, receive, send)
    return answered


def test_a_body_that_does_not_arrive_whole_is_no_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            executed = list(server.server._unbroken_executed)
            size = server.participant.log.size
            headers = {"cookie": cookie, words.ROLLOUT: "r", words.CALL: "2"}
            assert await _cut_off(server, "/add", b'{"count": 2', headers) == []
            assert server.server._unbroken_executed == executed
            assert server.participant.log.size == size
            whole = await server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2")
            assert (whole.json, whole.replayed) == ({"ok": True}, False)

    asyncio.run(scenario())

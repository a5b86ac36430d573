"""A call that waits for another of its session, which may wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.server import calls, cookies

from .tiny import Running, Tiny, running, until


class Circular(Tiny):
    """Has a tool that calls its own server for the session that it is called for."""

    _unbroken_running: Running

    async def on_outer(self, session: str, body: Mapping[str, Any]) -> object:
        key = self.get_session_middleware_key()
        cookie = f"{key}={cookies.sign(key, {words.SESSION_KEY: session})}"
        inner = await self._unbroken_running.post("/add", body, cookie=cookie, call="inner")
        return {"status": inner.status, "refused": inner.refused, "error": inner.json["error"]}


def test_a_tool_that_waits_for_itself_is_named_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "_NOTICED", 0.01)
    monkeypatch.setattr(calls, "_PATIENCE", 0.5)

    async def scenario() -> None:
        async with running(tmp_path, Circular) as server:
            assert isinstance(server.server, Circular)
            server.server._unbroken_running = server
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            answer = await server.post("/outer", {"count": 1}, cookie=cookie, rollout="r", call="outer")
            assert (answer.json["status"], answer.json["refused"]) == (409, "busy")
            expected = "/add waited 0.5 s for /outer (call outer) of the same session. Calls of one session"
            assert answer.json["error"].startswith(expected)
            assert (await server.post("/value", cookie=cookie)).json == {"count": 3}
            assert server.participant._turns == {}, "nobody waits any more"

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    (said,) = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
    assert "/add of session" in said
    assert "has been waiting for /outer (call outer) of the same session for 0.01 s. Calls" in said


def test_one_that_gets_its_turn_in_time_is_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            hold = server.server._unbroken_hold = asyncio.Event()
            first = asyncio.create_task(server.post("/add", {"count": 1}, cookie=cookie))
            await server.server._unbroken_held.wait()
            second = asyncio.create_task(server.post("/add", {"count": 2}, cookie=cookie))
            await until(lambda: any(turn.users == 2 for turn in server.participant._turns.values()))
            hold.set()
            assert [(await first).status, (await second).status] == [200, 200]
            assert (await server.post("/value", cookie=cookie)).json == {"count": 6}

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not caplog.records

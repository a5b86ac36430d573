"""Requests that arrive in part, or that nobody would send who means well."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.server import cookies
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Message, Receive, Reply, Scope, Send

from .tiny import Running, Tiny, TinyApp, running


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


class Compressing(TinyApp):
    """Answers compressed whoever says that he can take it, as middlewares for that do."""

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "gzip" not in asgi.header(scope["headers"], "accept-encoding"):
            await super()._answered(scope, receive, send)
            return
        reply = await asgi.call(super()._answered, scope, await asgi.body_of(receive))
        headers = [*reply.headers, (b"content-encoding", b"gzip")]
        await asgi.answer(send, Reply(reply.status, headers, gzip.compress(reply.body, mtime=0)))


class Wordy(Tiny):
    def setup_webserver(self) -> TinyApp:
        return Compressing(self)

    async def on_tell(self, session: str, body: Mapping[str, object]) -> object:
        del body
        return {"text": "a word " * self.session_id_to_counter[session]}


def test_what_is_kept_of_an_answer_is_not_compressed(tmp_path: Path) -> None:
    async def scenario() -> None:
        gzips = {"accept-encoding": "gzip, deflate"}
        async with running(tmp_path, Wordy) as server:
            cookie = (await server.post("/seed_session", {"start": 99}, rollout="r", call="1")).cookie
            first = await server.post("/tell", cookie=cookie, rollout="r", call="2", headers=gzips)
            assert first.json == {"text": "a word " * 99}
        async with running(tmp_path, Wordy) as server:
            (session,) = (await server.told("sessions")).sessions
            assert session.status == "open", "its calls are answered as they were"
            again = await server.post("/tell", cookie=cookie, rollout="r", call="2")
            assert (again.replayed, again.json) == (True, first.json)

    asyncio.run(scenario())


@pytest.mark.parametrize("attempt", ["-1", "1.0", "x", str(2**53 + 1), "9" * 5000, "+1", "1_0"])
def test_an_attempt_that_is_no_number_is_refused_before_anything_is_touched(
    tmp_path: Path, attempt: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            size = server.participant.log.size
            given = {words.ATTEMPT: attempt}
            for path in ("/add", "/seed_session"):
                body = {"count": 1}
                refused = await server.post(path, body, cookie=cookie, rollout="r", call="2", headers=given)
                assert (refused.status, refused.refused) == (400, "format")
                assert "is no whole number from 0 to 2**53. Send one" in refused.json["error"]
            assert server.participant.log.size == size
            most = await server.post("/add", {"count": 1}, cookie=cookie, rollout="r", attempt=2**53)
            assert most.status == 200
        async with running(tmp_path) as server:
            assert (await server.post("/value", cookie=cookie)).json == {"count": 4}

    asyncio.run(scenario())


def test_a_clock_that_was_set_back_a_little_costs_no_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            seeded = await server.post("/seed_session", {"start": 3}, rollout="r", call="1")
            session = next(iter(server.server.session_id_to_counter))
            key = server.server.get_session_middleware_key()
            ahead = {
                by: f"{key}={cookies.sign(key, {words.SESSION_KEY: session}, now=time.time() + by)}"
                for by in (cookies.SKEW - 60, cookies.SKEW + 60)
            }
            answers = [await server.post("/value", cookie=cookie) for cookie in ahead.values()]
            assert answers[0].json == {"count": 3}, "the application finds it as well"
            assert answers[1].refused == "bad cookie"
            assert list(server.server.session_id_to_counter) == [session]
            assert (await server.post("/value", cookie=seeded.cookie)).json == {"count": 3}

    asyncio.run(scenario())

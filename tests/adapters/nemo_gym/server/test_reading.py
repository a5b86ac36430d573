"""Who only looks at a session is told where it is, as whoever changes it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Receive as Received
from unbroken.adapters.nemo_gym.control import Record, Settle, Surrender
from unbroken.adapters.nemo_gym.server import cookies
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Receive, Reply, Scope, Send

from .tiny import Running, Tiny, TinyApp, running


class Looking(TinyApp):
    """Answers `GET /look` with the session's counter."""

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/look":
            await super()._answered(scope, receive, send)
            return
        key = self.server.get_session_middleware_key()
        given = cookies.found(scope["headers"]).get(key)
        session = ((cookies.read(key, given) if given else None) or {}).get(words.SESSION_KEY, "")
        body = json.dumps(self.server.session_id_to_counter.setdefault(session, 0)).encode()
        await asgi.answer(send, Reply(200, [], body))


class Looked(Tiny):
    def setup_webserver(self) -> TinyApp:
        return Looking(self)


async def _look(server: Running, cookie: str, path: str = "/look") -> Reply:
    return await server.ask("GET", path, b"", {"cookie": cookie})


def test_a_session_that_is_not_here_is_not_looked_at(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Looked) as server:
            seeded = await server.post("/seed_session", {"start": 3}, rollout="r", call="1")
            assert (await _look(server, seeded.cookie)).body == b"3"
            key = server.server.get_session_middleware_key()
            unknown = f"{key}={cookies.sign(key, {words.SESSION_KEY: 'not here'})}"
            for cookie, status, kind in (
                (unknown, 409, "unknown session"),
                (seeded.cookie[:-3] + "abc", 401, "bad cookie"),
            ):
                refused = await _look(server, cookie)
                assert (refused.status, refused.header(words.REFUSED)) == (status, kind)
                for path in ("/", "/docs", "/openapi.json"):
                    assert (await _look(server, cookie, path)).status == 200
            assert "not here" not in server.server.session_id_to_counter
            assert (await _look(server, "")).status == 200, "who names no session has none to lose"
            assert (await _look(server, "another=1")).status == 200

    asyncio.run(scenario())


def test_a_session_that_is_over_is_not_looked_at(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Looked, retire_after_verify=True) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            await server.post("/verify", {"expected": 3}, cookie=cookie, rollout="r", call="2")
            refused = await _look(server, cookie)
            assert (refused.status, refused.header(words.REFUSED)) == (409, "lost session")

    asyncio.run(scenario())


def test_who_looks_at_a_session_that_has_moved_is_sent_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running(tmp_path / "a", Looked, name="a") as source,
            running(tmp_path / "b", Looked, name="b") as target,
        ):
            await source.adopted()
            await target.adopted()
            cookie = (await source.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            session = next(iter(source.server.session_id_to_counter))
            record = await source.told("surrender", Surrender(session=session, to="http://b:1"))
            assert isinstance(record, Record)
            await target.told("receive", Received(record=record.data))
            await source.told("settle", Settle(session=session, moved=True))
            sent_on = await _look(source, cookie)
            assert (sent_on.status, sent_on.header("location")) == (307, "http://b:1/look")
            assert (await _look(target, cookie)).body == b"3", "by the other server's cookie"

    asyncio.run(scenario())

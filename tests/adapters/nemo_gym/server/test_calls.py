"""Which calls are let through, and that each is executed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Adopt, Quiesce, Refusal
from unbroken.adapters.nemo_gym.server import cookies
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Receive, Reply, Scope, Send
from unbroken.errors import ConfigError, StoreFull

from .tiny import Tiny, TinyApp, running


def test_a_lost_answer_that_is_asked_for_again_is_executed_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            seeded = await server.post("/seed_session", {"start": 3}, rollout="r", call="1")
            for replayed in (False, True):
                answer = await server.post("/add", {"count": 2}, cookie=seeded.cookie, rollout="r", call="2")
                assert (answer.json, answer.replayed) == ({"ok": True}, replayed)
                assert answer.cookie
            assert (await server.post("/value", cookie=seeded.cookie)).json == {"count": 5}
            again = await server.post("/seed_session", {"start": 3}, rollout="r", call="1")
            assert (again.replayed, again.json) == (True, seeded.json)
            other = await server.post("/add", {"count": 2}, cookie=seeded.cookie, rollout="r", call="3")
            assert not other.replayed
            assert (await server.post("/value", cookie=seeded.cookie)).json == {"count": 7}

    asyncio.run(scenario())


def test_one_that_is_sent_again_while_it_is_executed_waits_for_that_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            server.server._unbroken_hold = asyncio.Event()
            twice = [
                asyncio.create_task(server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2"))
                for _ in range(2)
            ]
            await server.server._unbroken_held.wait()
            server.server._unbroken_hold.set()
            first, second = await asyncio.gather(*twice)
            assert (first.replayed, second.replayed) == (False, True)
            assert first.json == second.json
            assert server.server._unbroken_executed.count("/add") == 1

    asyncio.run(scenario())


def test_a_client_that_goes_away_does_not_undo_its_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            hold = server.server._unbroken_hold = asyncio.Event()
            call = asyncio.create_task(
                server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2")
            )
            await server.server._unbroken_held.wait()
            call.cancel()
            await asyncio.wait([call])
            (inside,) = (await server.told("status")).in_flight
            assert (inside.path, inside.id, inside.rollout) == ("/add", "2", "r")
            hold.set()
            again = await server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2")
            assert (again.status, again.replayed) == (200, True)
            assert (await server.post("/value", cookie=cookie)).json == {"count": 5}

    asyncio.run(scenario())


def test_the_same_rollout_has_the_same_session_in_every_process(tmp_path: Path) -> None:
    async def sessions(directory: Path) -> list[str]:
        async with running(directory) as server:
            for rollout in ("a", "b", ""):
                await server.post("/seed_session", rollout=rollout, call="1" if rollout else "")
            return list(server.server.session_id_to_counter)

    one, other = asyncio.run(sessions(tmp_path / "1")), asyncio.run(sessions(tmp_path / "2"))
    assert one[:2] == other[:2]
    assert len(set(one)) == 3
    assert one[2] != other[2], "one without a name of its own is new each time"


def test_who_may_not_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (
                await server.post("/seed_session", {"start": 3}, rollout="r", attempt=1, call="1")
            ).cookie
            key = server.server.get_session_middleware_key()
            unknown = f"{key}={cookies.sign(key, {words.SESSION_KEY: 'not here'})}"
            old = f"{key}={cookies.sign(key, {words.SESSION_KEY: 'not here'}, now=1)}"
            executed = list(server.server._unbroken_executed)
            for expected, answer in (
                ((401, "bad cookie"), await server.post("/value", cookie=cookie[:-3] + "abc")),
                ((401, "bad cookie"), await server.post("/value", cookie=old)),
                ((409, "unknown session"), await server.post("/value", cookie=unknown)),
                ((409, "unknown session"), await server.post("/value")),
                ((409, "unknown session"), await server.post("/value", cookie=cookie, rollout="x")),
                ((409, "stale attempt"), await server.post("/value", cookie=cookie, rollout="r", attempt=0)),
                (
                    (409, "stale attempt"),
                    await server.post("/seed_session", rollout="r", call="1", attempt=0),
                ),
            ):
                assert (answer.status, answer.refused) == expected
                assert answer.json["error"].endswith(".")
            assert server.server._unbroken_executed == executed, "none of them was"
            assert (await server.post("/value", cookie=cookie, rollout="r", attempt=2)).json == {"count": 3}
            late = await server.post("/value", cookie=cookie, rollout="r", attempt=1)
            assert late.refused == "stale attempt"
        async with running(tmp_path) as server:
            late = await server.post("/value", cookie=cookie, rollout="r", attempt=1)
            assert late.refused == "stale attempt", "it is remembered"
            assert (await server.post("/seed_session", {"start": 1}, cookie=unknown)).status == 200
            assert (await server.post("/value", cookie=unknown)).json == {"count": 1}

    asyncio.run(scenario())


def test_a_server_without_a_place_to_begin_lets_calls_begin_anywhere(tmp_path: Path) -> None:
    class Anywhere(Tiny):
        on_seed_session = None  # type: ignore[assignment]

        def setup_webserver(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
            app = super().setup_webserver()
            app.routes = [route for route in app.routes if route.path != "/seed_session"]
            return app

    async def scenario() -> None:
        async with running(tmp_path, Anywhere) as server:
            answer = await server.post("/add", {"count": 2})
            assert answer.status == 200
            assert (await server.post("/value", cookie=answer.cookie)).json == {"count": 2}

    asyncio.run(scenario())


def test_a_tool_that_is_called_like_a_control_path_is_a_tool(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session")).cookie
            answer = await server.post("/.unbroken/drop", {"rollouts": []}, cookie=cookie)
            assert answer.json == {"tool": "/.unbroken/drop", "said": '{"rollouts": []}'}

    asyncio.run(scenario())


def test_control_needs_the_token_and_the_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            wrong = await server.told("status", token="0" * 64)
            assert isinstance(wrong, Refusal)
            assert wrong.kind == "token"
            assert (await server.told("release", epoch=7)).kind == "fenced"
            await server.adopted()
            await server.adopted()
            assert server.epoch == 2
            assert (await server.told("quiesce", Quiesce(timeout=1), epoch=1)).kind == "fenced"
            assert (await server.told("status")).phase == "open"
        async with running(tmp_path) as server:
            assert server.participant.epoch == 2, "epochs outlive the process"

    asyncio.run(scenario())


def test_several_workers_would_each_have_some_of_the_sessions(tmp_path: Path) -> None:
    from unbroken.adapters.nemo_gym.attach import checkpointed

    from .tiny import Calculator

    with pytest.raises(ConfigError, match="num_workers=2, and its sessions live in one process") as caught:
        checkpointed(Tiny, directory=tmp_path)(num_workers=2).setup_webserver()
    assert "Set num_workers to 1" in caught.value.hint
    stateless = checkpointed(Calculator, directory=tmp_path, capability="stateless")
    stateless(num_workers=2).setup_webserver()
    checkpointed(Tiny, directory=tmp_path)(num_workers=1).setup_webserver()
    with pytest.raises(ConfigError, match="no server of NeMo Gym"):
        checkpointed(dict, directory=tmp_path)


def test_an_answer_that_cannot_be_kept_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie

            async def full(ticket: int) -> None:
                raise StoreFull(f"No room is left for {ticket}.")

            monkeypatch.setattr(server.participant.log, "durable", full)
            answer = await server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2")
            assert (answer.status, answer.refused) == (503, "closed")
            again = await server.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="2")
            assert (again.status, again.refused) == (503, "closed"), "nor from memory"
            assert server.server._unbroken_executed.count("/add") == 1
            refused = await server.told("adopt", Adopt(run="x"))
            assert isinstance(refused, Refusal)
            assert "No room is left" in refused.error
            assert "it stays closed: No room is left" in (await server.told("status")).recovery.notes[-1]

    asyncio.run(scenario())


def test_a_class_is_wrapped_once(tmp_path: Path) -> None:
    from unbroken.adapters.nemo_gym.attach import checkpointed

    once = checkpointed(Tiny, directory=tmp_path)
    assert (once.__name__, once.__qualname__, once.__module__) == ("Tiny", Tiny.__qualname__, Tiny.__module__)
    assert checkpointed(once) is once
    with pytest.raises(ConfigError, match="checkpointed already"):
        checkpointed(once, log_states=True)


def test_a_log_that_somebody_has_keeps_a_second_server_from_starting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path):
            with pytest.raises(AssertionError, match=r"lifespan\.startup\.failed"):
                async with running(tmp_path):
                    pass

    asyncio.run(scenario())


class Elsewhere(TinyApp):
    """Sends callers of one path to another, as frameworks do for a slash too many."""

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/tool/":
            await asgi.body_of(receive)
            headers = [(b"location", b"/tool"), (b"date", b"today"), (b"x-reason", b"slash")]
            await asgi.answer(send, Reply(307, headers))
            return
        await super()._answered(scope, receive, send)


class Slashes(Tiny):
    def setup_webserver(self) -> TinyApp:
        return Elsewhere(self)


def test_an_answer_that_is_given_again_has_its_headers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Slashes) as server:
            cookie = (await server.post("/seed_session", {}, rollout="r", call="1")).cookie
            first = await server.post("/tool/", cookie=cookie, rollout="r", call="2")
            assert first.reply.header("location") == "/tool"
        async with running(tmp_path, Slashes) as server:
            again = await server.post("/tool/", cookie=cookie, rollout="r", call="2")
            assert (again.replayed, again.status) == (True, 307)
            told = {name: again.reply.header(name) for name in ("location", "x-reason", "date")}
            assert told == {"location": "/tool", "x-reason": "slash", "date": ""}

    asyncio.run(scenario())

"""A session moves to another server while its calls wait, and lives in one place at every moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Drop, Receive, Record, Refusal, Settle, Surrender

from .tiny import Running, running


async def _seeded(server: Running) -> tuple[str, str]:
    cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
    await server.post("/draw", cookie=cookie)
    return cookie, next(iter(server.server.session_id_to_counter))


def test_a_call_that_waits_is_sent_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "a", name="a") as source, running(tmp_path / "b", name="b") as target:
            await source.adopted()
            await target.adopted()
            cookie, session = await _seeded(source)
            digests = await source.digests()
            record = await source.told("surrender", Surrender(session=session, to="http://b:1"))
            assert isinstance(record, Record)
            waiting = asyncio.create_task(
                source.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="3")
            )
            assert (await target.told("receive", Receive(record=record.data))) is not None
            assert not waiting.done()
            assert await target.digests() == digests
            await source.told("settle", Settle(session=session, moved=True))
            answer = await waiting
            assert answer.status == 307
            assert answer.reply.header(words.MOVED) == "http://b:1"
            assert answer.reply.header("location") == "http://b:1/add"
            assert source.server._unbroken_executed.count("/add") == 0
            assert source.server.session_id_to_counter == {}
            # The cookie is the other server's: its name tells the secret, and its session is known to be here.
            assert (
                await target.post("/add", {"count": 2}, cookie=cookie, rollout="r", call="3")
            ).status == 200
            assert (await target.post("/value", cookie=cookie)).json == {"count": 5}
            replayed = await target.post("/seed_session", cookie=cookie, rollout="r", call="1")
            assert replayed.replayed, "what was answered at the source is known here"
            assert isinstance(await source.told("settle", Settle(session=session, moved=True)), object)
        async with running(tmp_path / "a", name="a") as source, running(tmp_path / "b", name="b") as target:
            assert (await source.post("/value", cookie=cookie)).status == 307
            assert (await target.post("/value", cookie=cookie)).json == {"count": 5}
            # And back.
            await source.adopted()
            await target.adopted()
            record = await target.told("surrender", Surrender(session=session, to="http://a:1"))
            await source.told("receive", Receive(record=record.data))
            await target.told("settle", Settle(session=session, moved=True))
            assert (await source.post("/value", cookie=cookie)).json == {"count": 5}
            assert (await target.post("/value", cookie=cookie)).status == 307

    asyncio.run(scenario())


def test_a_session_that_was_not_moved_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            cookie, session = await _seeded(source)
            hold = source.server._unbroken_hold = asyncio.Event()
            call = asyncio.create_task(source.post("/add", {"count": 2}, cookie=cookie))
            await source.server._unbroken_held.wait()
            surrender = asyncio.create_task(
                source.told("surrender", Surrender(session=session, to="http://b:1"))
            )
            await asyncio.sleep(0)
            assert not surrender.done(), "the call that is being executed is part of what moves"
            hold.set()
            assert (await call).status == 200
            assert isinstance(await surrender, Record)
            waiting = asyncio.create_task(source.post("/value", cookie=cookie))
            twice = await source.told("surrender", Surrender(session=session, to="http://c:1"))
            assert twice.kind == "busy"
            await source.told("settle", Settle(session=session, moved=False))
            assert (await waiting).json == {"count": 5}

    asyncio.run(scenario())


def test_a_server_that_starts_again_in_between_has_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "b", name="b") as target:
            await target.adopted()
            async with running(tmp_path / "a", name="a") as source:
                await source.adopted()
                cookie, session = await _seeded(source)
                record = await source.told("surrender", Surrender(session=session, to="http://b:1"))
                await target.told("receive", Receive(record=record.data))
            async with running(tmp_path / "a", name="a") as source:
                await source.adopted()
                assert (await source.post("/add", {"count": 2}, cookie=cookie)).status == 200
                late = await source.told("settle", Settle(session=session, moved=True))
                assert isinstance(late, Refusal)
                assert "may have gone on here" in late.error
                assert (await source.post("/value", cookie=cookie)).json == {"count": 5}
                # Once more: the copy at the target is older, and makes room.
                record = await source.told("surrender", Surrender(session=session, to="http://b:1"))
                await target.told("receive", Receive(record=record.data))
                await source.told("settle", Settle(session=session, moved=True))
                assert (await target.post("/value", cookie=cookie)).json == {"count": 5}
                old = await target.told("receive", Receive(record=record.data))
                assert (old.kind, "has gone on" in old.error) == ("busy", True)

    asyncio.run(scenario())


def test_another_trainer_ends_what_the_one_before_had_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            cookie, session = await _seeded(source)
            await source.told("surrender", Surrender(session=session, to="http://b:1"))
            waiting = asyncio.create_task(source.post("/value", cookie=cookie))
            await source.adopted()
            assert (await waiting).json == {"count": 3}
            await source.told("drop", Drop(rollouts=["r"]))
            gone = await source.told("surrender", Surrender(session=session, to="http://b:1"))
            assert gone.kind == "unknown session"

    asyncio.run(scenario())

"""A session moves to another server while its calls wait, and lives in one place at every moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Drop, Receive, Record, Refusal, Settle, Surrender
from unbroken.errors import StoreError

from .tiny import Answer, Running, running, until


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


async def _given_away(source: Running) -> tuple[str, asyncio.Task[Answer]]:
    """Surrender a session; return its id, and a call that waits for it."""
    cookie, session = await _seeded(source)
    given = await source.told("surrender", Surrender(session=session, to="http://b:1"))
    assert isinstance(given, Record)
    waiting = asyncio.create_task(source.post("/value", cookie=cookie, rollout="r", call="3"))
    for _ in range(1000):
        if (await source.told("status")).held:
            return session, waiting
        await asyncio.sleep(0.001)
    raise AssertionError("the call was not held")


def test_calls_that_wait_for_a_session_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            session, waiting = await _given_away(source)
            (held,) = (await source.told("status")).held
            assert (held.session, held.rollout, held.id, held.path) == (session, "r", "3", "/value")
            await source.told("settle", Settle(session=session, moved=False))
            await waiting
            assert (await source.told("status")).held == ()

    asyncio.run(scenario())


def test_a_surrender_of_which_nothing_more_is_heard_ends_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            cookie, session = await _seeded(source)
            asked = Surrender(session=session, to="http://b:1", lease=2.0)
            assert isinstance(await source.told("surrender", asked), Record)
            assert (await source.post("/value", cookie=cookie)).json == {"count": 3}
            late = await source.told("settle", Settle(session=session, moved=True))
            assert "may have gone on here" in late.error

    asyncio.run(scenario())


def test_a_surrender_that_waits_longer_than_its_lease_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            cookie, session = await _seeded(source)
            hold = source.server._unbroken_hold = asyncio.Event()
            call = asyncio.create_task(source.post("/add", {"count": 2}, cookie=cookie))
            await source.server._unbroken_held.wait()
            asked = Surrender(session=session, to="http://b:1", lease=0.01)
            surrender = asyncio.create_task(source.told("surrender", asked))
            following = asyncio.create_task(source.post("/value", cookie=cookie))
            await until(lambda: source.participant._turns[session].users == 3)  # it is held no more
            hold.set()
            assert (await call).status == 200
            assert "is not being given away any more" in (await surrender).error
            assert (await following).json == {"count": 5}

    asyncio.run(scenario())


def test_dropping_a_rollout_ends_the_surrender_of_its_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            session, waiting = await _given_away(source)
            await source.told("drop", Drop(rollouts=["r"]))
            assert (await waiting).refused == "unknown session"
            late = await source.told("settle", Settle(session=session, moved=True))
            assert late.kind == "unknown session"

    asyncio.run(scenario())


def test_calls_do_not_wait_for_a_word_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as source:
            await source.adopted()
            session, waiting = await _given_away(source)

            def full(*_: object) -> int:
                raise StoreError("The disk is full.", key="log")

            monkeypatch.setattr(source.participant.log, "append", full)
            failed = await source.told("settle", Settle(session=session, moved=True))
            assert "disk is full" in failed.error
            assert (await waiting).refused == "closed"

    asyncio.run(scenario())


def test_a_session_that_arrives_for_a_trainer_that_was_replaced_is_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "a", name="a") as source, running(tmp_path / "b", name="b") as target:
            await source.adopted()
            await target.adopted()
            _, session = await _seeded(source)
            record = await source.told("surrender", Surrender(session=session, to="http://b:1"))
            async with target.participant.turn:
                arriving = asyncio.create_task(target.told("receive", Receive(record=record.data)))
                await until(lambda: session in target.participant._turns)
                await target.adopted()
            assert (await arriving).kind == "fenced"
            assert (await target.told("status")).sessions == 0

    asyncio.run(scenario())

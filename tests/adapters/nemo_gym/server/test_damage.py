"""A byte that flips in a log costs at most what it was part of, and is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Drop, Settle, Surrender
from unbroken.adapters.nemo_gym.keys import log_key
from unbroken.adapters.nemo_gym.log import Log
from unbroken.adapters.nemo_gym.records import Ended, State

from .tiny import Running, running


def _flip(directory: Path, session: str, kind: type[msgspec.Struct], *, last: bool = True) -> None:
    """Spoil a line of `session` of this kind."""
    log = Log.open(directory, key=log_key())
    lines = [
        line for line in log.lines if line.label == session and isinstance(records.entry(line.payload), kind)
    ]
    log.close()
    payload = lines[-1 if last else 0].payload
    data = bytearray((directory / "log").read_bytes())
    at = data.rindex(payload) + len(payload) - 3
    data[at] ^= 1
    (directory / "log").write_bytes(data)


async def _two(
    directory: Path, *, exported: bool = False
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return cookies, session ids and digests of two sessions, by rollout."""
    async with running(directory) as server:
        cookies = {
            rollout: (await server.post("/seed_session", {"start": 3}, rollout=rollout, call="1")).cookie
            for rollout in ("bad", "good")
        }
        for cookie in cookies.values():
            await server.post("/add", {"count": 2}, cookie=cookie)
        if exported:
            await (await server.adopted()).cut()
            for cookie in cookies.values():
                await server.post("/draw", cookie=cookie)
        ids = {s.rollout: s.id for s in (await server.told("sessions")).sessions}
        return cookies, ids, await server.digests()


async def _check_good(server: Running, ids: dict[str, str], digests: dict[str, str]) -> None:
    assert (await server.digests())[ids["good"]] == digests[ids["good"]]


def test_a_damaged_state_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        _, ids, digests = await _two(tmp_path, exported=True)
        _flip(tmp_path, ids["bad"], State)
        async with running(tmp_path) as server:
            assert await server.digests() == digests, "the state at the seeding and all calls since"
            listed = {r.id: r for r in (await server.told("status")).recovery.listed}
            assert (listed[ids["bad"]].tier, listed[ids["bad"]].redone) == ("older", 2)
            assert "a line of it is damaged" in listed[ids["bad"]].reasons[0]
            assert (listed[ids["good"]].tier, listed[ids["good"]].redone) == ("newest", 1)

    asyncio.run(scenario())


def test_a_session_whose_only_state_is_damaged_is_lost_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        cookies, ids, digests = await _two(tmp_path)
        _flip(tmp_path, ids["bad"], State)
        async with running(tmp_path) as server:
            await _check_good(server, ids, digests)
            answer = await server.post("/value", cookie=cookies["bad"])
            assert answer.refused == "lost session", "its generator cannot be seeded again"
            assert "a line of it is damaged" in answer.json["error"]
            assert "/seed_session, was answered" in answer.json["error"]
            assert (await server.post("/value", cookie=cookies["good"])).json == {"count": 5}

    asyncio.run(scenario())


def test_a_session_whose_newest_answer_is_damaged_is_not_guessed(tmp_path: Path) -> None:
    async def scenario() -> None:
        cookies, ids, digests = await _two(tmp_path)
        _flip(tmp_path, ids["bad"], Ended)
        async with running(tmp_path) as server:
            await _check_good(server, ids, digests)
            answer = await server.post("/value", cookie=cookies["bad"])
            assert answer.refused == "lost session", "3 would be wrong, and 5 is not known"
            assert "/add may have been answered in a damaged line" in answer.json["error"]

    asyncio.run(scenario())


def test_an_answer_that_a_newer_state_holds_is_not_needed(tmp_path: Path) -> None:
    async def scenario() -> None:
        cookies, ids, digests = await _two(tmp_path, exported=True)
        _flip(tmp_path, ids["bad"], Ended, last=False)
        async with running(tmp_path) as server:
            assert await server.digests() == digests
            assert (await server.post("/value", cookie=cookies["bad"])).json == {"count": 5}

    asyncio.run(scenario())


def test_a_state_of_the_generation_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        _, ids, digests = await _two(tmp_path)
        async with running(tmp_path) as server:
            await server.participant.rewrite()
        log = (tmp_path / "log").read_bytes()
        opened = Log.open(tmp_path, key=log_key())
        (whole,) = [line for line in opened.lines if line.label == ids["bad"]]
        # As if only the state in it had rotted, before it was written: the line's own seal is good.
        entry = records.entry(whole.payload)
        assert isinstance(entry, records.Whole)
        assert entry.record.state is not None
        entry.record.state = msgspec.structs.replace(entry.record.state, data=b"rotten")
        assert log
        opened.append(ids["bad"], records.encode(entry))
        opened.close()
        async with running(tmp_path) as server:
            assert await server.digests() == digests
            listed = {r.id: r for r in (await server.told("status")).recovery.listed}
            assert listed[ids["bad"]].tier == "older"
            assert "is of no use" in listed[ids["bad"]].reasons[0]

    asyncio.run(scenario())


def test_what_had_begun_and_was_not_answered_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        cookies, ids, digests = await _two(tmp_path)
        opened = Log.open(tmp_path, key=log_key())
        began = records.Began(
            number=99, session=ids["good"], rollout="good", id="7", path="/add", arguments=b"{}"
        )
        opened.append(ids["good"], records.encode(began))
        opened.close()
        async with running(tmp_path) as server:
            assert await server.digests() == digests
            (doubt,) = (await server.told("status")).recovery.in_doubt
            assert (doubt.path, doubt.id, doubt.session) == ("/add", "7", ids["good"])
            answer = await server.post("/add", {"count": 1}, cookie=cookies["good"], rollout="good", call="7")
            assert not answer.replayed
            assert (await server.post("/value", cookie=cookies["good"])).json == {"count": 6}

    asyncio.run(scenario())


def _flip_each(directory: Path, session: str, *, newest: int) -> list[bytes]:
    """Return the log with one bit flipped, in each of the newest lines of `session`."""
    log = Log.open(directory, key=log_key())
    payloads = [line.payload for line in log.lines if line.label == session][-newest:]
    log.close()
    data = (directory / "log").read_bytes()
    end, spoilt = len(data), list[bytes]()
    for payload in reversed(payloads):
        end = data.rindex(payload, 0, end)
        for at in (end + len(payload) // 2, end - 3):  # in what it says, and in whose it is
            one = bytearray(data)
            one[at] ^= 1
            spoilt.append(bytes(one))
    return spoilt


@pytest.mark.parametrize("end", ["moved", "retired", "dropped", "lost"])
def test_one_bit_does_not_bring_a_session_back_that_has_ended_here(tmp_path: Path, end: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, retire_after_verify=True) as server:
            await server.adopted()
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="r", call="1")).cookie
            session = next(iter(server.server.session_id_to_counter))
            if end == "moved":
                await server.told("surrender", Surrender(session=session, to="http://b:1"))
                await server.told("settle", Settle(session=session, moved=True))
            elif end == "retired":
                await server.post("/verify", {"expected": 3}, cookie=cookie, rollout="r", call="2")
            elif end == "dropped":
                await server.told("drop", Drop(rollouts=["r"]))
            else:
                record = server.participant.book.get(session)
                assert record is not None
                await server.participant.durable(server.participant.give_up(record, "for a reason"))
            before = await server.post("/add", {"count": 1}, cookie=cookie, rollout="r", call="3")
            assert before.status != 200
        spoilt = _flip_each(tmp_path, session, newest=2)
        assert len(spoilt) == 4
        for data in spoilt:
            (tmp_path / "log").write_bytes(data)
            async with running(tmp_path, retire_after_verify=True) as server:
                after = await server.post("/add", {"count": 1}, cookie=cookie, rollout="r", call="3")
                assert (after.status, after.refused) == (before.status, before.refused)
                assert server.server.session_id_to_counter == {}

    asyncio.run(scenario())

"""A server that is started again has its sessions, exactly; each test names what it would be otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from .tiny import Calculator, Running, Tiny, running


async def _seeded(server: Running, start: int = 3, *, rollout: str = "r", call: str = "") -> str:
    answer = await server.post("/seed_session", {"start": start}, rollout=rollout, call=call)
    assert answer.status == 200, answer.body
    return answer.cookie


def test_a_session_goes_on_where_it_was(tmp_path: Path) -> None:
    async def counted(directory: Path | None) -> int:
        async with running(directory) as server:
            cookie = await _seeded(server)
            await server.post("/add", {"count": 2}, cookie=cookie)
        async with running(directory) as server:
            return int((await server.post("/value", cookie=cookie)).json["count"])

    assert asyncio.run(counted(tmp_path)) == 5
    assert asyncio.run(counted(None)) == 0, "without its log it answers with something else"


def test_the_newest_state_and_the_calls_since(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = await _seeded(server)
            first = (await server.post("/draw", cookie=cookie)).json
            digests = await server.digests()
        async with running(tmp_path) as server:
            assert await server.digests() == digests
            recovery = (await server.told("status")).recovery
            assert [(r.tier, r.redone, r.reasons) for r in recovery.listed] == [("newest", 1, ())]
            assert server.server._unbroken_executed == ["/draw"], "seeding is not done again"
            second = (await server.post("/draw", cookie=cookie)).json
            assert second != first
        async with running(tmp_path) as server:
            again = await server.post("/draw", cookie=cookie)
            assert again.json not in (first, second), "the generator stands behind both draws"

    asyncio.run(scenario())


def test_a_generator_without_seed_deals_the_same_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = await _seeded(server)
            session = next(iter(server.server.session_id_to_rng))
            state = server.server.session_id_to_rng[session].getstate()
        async with running(tmp_path) as server:
            assert server.server.session_id_to_rng[session].getstate() == state
        async with running(tmp_path / "none") as other:  # C != U: seeding again deals another
            await other.post("/seed_session", cookie=cookie)
            assert other.server.session_id_to_rng[session].getstate() != state

    asyncio.run(scenario())


def test_what_is_answered_otherwise_is_found_and_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            bad, good = await _seeded(server, rollout="bad"), await _seeded(server, 7, rollout="good")
            await server.post("/roll", cookie=bad)
            await server.post("/add", {"count": 1}, cookie=good)
        async with running(tmp_path) as server:
            status = await server.told("status")
            tiers = {r.id: r for r in status.recovery.listed}
            rollouts = {s.rollout: s for s in (await server.told("sessions")).sessions}
            assert tiers[rollouts["good"].id].tier == "newest"
            refused = tiers[rollouts["bad"].id]
            assert refused.tier == "refused"
            assert "call 2, /roll," in refused.reasons[0]
            assert "call 1, /seed_session," in refused.reasons[1]
            assert rollouts["bad"].id not in server.server.session_id_to_counter, "nothing half of it is left"
            answer = await server.post("/value", cookie=bad)
            assert (answer.status, answer.refused) == (409, "lost session")
            assert "/roll" in answer.json["error"]
            assert (await server.post("/value", cookie=good)).json == {"count": 8}

    asyncio.run(scenario())


def test_states_after_every_call_for_servers_that_cannot_be_redone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, log_states=True) as server:
            cookie = await _seeded(server)
            await server.post("/roll", cookie=cookie)
            digests = await server.digests()
        async with running(tmp_path, log_states=True) as server:
            assert await server.digests() == digests
            assert server.server._unbroken_executed == []

    asyncio.run(scenario())


def test_a_verification_is_not_executed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = await _seeded(server)
            await server.post("/add", {"count": 2}, cookie=cookie)
            verified = await server.post("/verify", {"expected": 5}, cookie=cookie, rollout="r", call="v")
            assert verified.json == {"reward": 1.0}
        async with running(tmp_path) as server:
            assert server.server._unbroken_executed == [], "the state after it is in the log"
            again = await server.post("/verify", {"expected": 5}, cookie=cookie, rollout="r", call="v")
            assert again.replayed
            assert again.json == {"reward": 1.0}

    asyncio.run(scenario())


def test_an_exception_is_an_answer_like_any_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = await _seeded(server)
            with pytest.raises(ValueError, match="so"):
                await server.post("/boom", {"why": "so"}, cookie=cookie, rollout="r", call="b")
        async with running(tmp_path) as server:
            again = await server.post("/boom", {"why": "so"}, cookie=cookie, rollout="r", call="b")
            assert (again.status, again.json, again.replayed) == (500, "ValueError('so')", True)
            assert (await server.post("/value", cookie=cookie)).json == {"count": 103}

    asyncio.run(scenario())


def test_by_replay_where_nothing_can_be_captured(tmp_path: Path) -> None:
    class Seeded(Tiny):
        async def on_seed_session(self, session: str, body: object) -> object:
            self.session_id_to_counter[session] = 3
            return {}

    async def scenario() -> None:
        async with running(tmp_path, Seeded, capability="replay") as server:
            cookie = await _seeded(server)
            await server.post("/add", {"count": 2}, cookie=cookie)
            exported = await (await server.adopted()).cut()
            assert len(exported.records) == 1
        async with running(tmp_path, Seeded, capability="replay") as server:
            (back,) = (await server.told("status")).recovery.listed
            assert (back.tier, back.redone) == ("replayed", 2)
            assert (await server.post("/value", cookie=cookie)).json == {"count": 5}

    asyncio.run(scenario())


def test_sessions_that_cannot_come_back_say_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, capability="restart_only") as server:
            cookie = await _seeded(server)
        async with running(tmp_path, capability="restart_only") as server:
            answer = await server.post("/value", cookie=cookie)
            assert answer.refused == "lost session"
            assert "begin anew" in answer.json["error"]

    asyncio.run(scenario())


def test_a_stateless_server_keeps_verifications_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Calculator, capability="stateless") as server:
            assert (await server.told("status")).capability == "stateless"
            assert (await server.post("/anything")).status == 200
            first = await server.post("/verify", {"expected": 5}, rollout="r", call="v")
            await server.post("/verify", {"expected": 5})
            assert (await server.told("status")).sessions == 1
        async with running(tmp_path, Calculator, capability="stateless") as server:
            again = await server.post("/verify", {"expected": 5}, rollout="r", call="v")
            assert again.replayed
            assert again.json == first.json
            other = await server.post("/verify", {"expected": 5}, rollout="r", call="w")
            assert other.json != first.json

    asyncio.run(scenario())


def test_retired_sessions_keep_their_answers_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        for expected_executions in (["/seed_session", "/verify"], []):
            async with running(tmp_path, retire_after_verify=True) as server:
                answer = await server.post("/seed_session", {"start": 5}, rollout="r", call="s")
                cookie = answer.cookie
                verified = await server.post("/verify", {"expected": 5}, cookie=cookie, rollout="r", call="v")
                assert verified.json == {"reward": 1.0}
                assert server.server._unbroken_executed == expected_executions
                assert server.server.session_id_to_counter == {}
                over = await server.post("/value", cookie=cookie, rollout="r", call="w")
                assert over.refused == "lost session"
                assert "is over" in over.json["error"]

    asyncio.run(scenario())


def test_it_starts_closed_if_told_so_and_opens_on_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_GYM_START", "closed")

    async def scenario() -> None:
        async with running(tmp_path) as server:
            assert (await server.told("status")).phase == "closed"
            waiting = asyncio.create_task(server.post("/seed_session"))
            assert (await server.post("/", method="GET")).status == 200, "it lives"
            await server.adopted()
            assert not waiting.done()
            await server.told("release")
            assert (await waiting).status == 200
            assert (await server.told("status")).phase == "open"

    asyncio.run(scenario())


class Late(Calculator):
    """Seems to have no sessions until the first call that makes one."""

    def __init__(self, *, name: str = "res", num_workers: int = 1) -> None:
        super().__init__(name=name, num_workers=num_workers)
        self.notes: dict[str, list[object]] = {}

    async def on_note(self, session: str, body: Mapping[str, object]) -> object:
        return {"notes": _noted(self, session, body["text"])}


def _noted(server: Late, session: str, text: object) -> list[object]:
    server.notes.setdefault(session, []).append(text)  # where whoever reads the class does not see it
    return server.notes[session]


def test_a_server_that_turns_out_to_have_sessions_keeps_them_from_then_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Late) as server:
            assert (await server.told("status")).capability == "replay", "it is not proved to have none"
            cookie = (await server.post("/anything", rollout="r", call="1")).cookie
            await server.post("/note", {"text": "a"}, cookie=cookie, rollout="r", call="2")
            assert (await server.told("status")).capability == "snapshot"
            await server.post("/note", {"text": "b"}, cookie=cookie, rollout="r", call="3")
            digests = await server.digests()
            assert len(digests) == 1
        async with running(tmp_path, Late) as server:
            assert vars(server.server)["notes"] == {next(iter(digests)): ["a", "b"]}
            assert await server.digests() == digests

    asyncio.run(scenario())


def test_a_server_that_comes_back_says_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, name="todo") as server:
            for rollout in ("a", "b"):
                cookie = (await server.post("/seed_session", {"start": 3}, rollout=rollout)).cookie
                for count in (1, 2):
                    await server.post("/add", {"count": count}, cookie=cookie)
        assert capsys.readouterr().err == "", "it began with nothing"
        async with running(tmp_path, name="todo"):
            pass
        said = capsys.readouterr().err
        assert said == "unbroken: todo came back from its log: 2 sessions, 4 calls done again\n"

    asyncio.run(scenario())

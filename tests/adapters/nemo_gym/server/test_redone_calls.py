"""H7: what a restart costs grows with the turns of a session only where it was said so. Calls are counted, not seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym.control import Recovered

from .tiny import Tiny, running, until

TURNS = pytest.mark.parametrize("turns", [10, 100])


async def _restarted(
    directory: Path, turns: int, cls: type[Tiny] = Tiny, *, cut: bool = False, **options: Any
) -> list[Recovered]:
    """Let a session take so many turns and restart its server; check that all it did is there. Return how it came back."""
    async with running(directory, cls, **options) as server:
        cookie = (await server.post("/seed_session", {"start": 3})).cookie
        for _ in range(turns):
            await server.post("/add", {"count": 1}, cookie=cookie)
        if cut:
            await (await server.adopted()).cut()
        digests = await server.digests()
    async with running(directory, cls, **options) as server:
        assert await server.digests() == digests
        recovery = (await server.told("status")).recovery
        executed = server.server._unbroken_executed
        assert len(executed) == sum(one.redone for one in recovery.listed)
        answer = await server.post("/value", cookie=cookie)
        assert answer.json == {"count": 3 + turns}
        return list(recovery.listed)


@TURNS
@pytest.mark.parametrize(
    "options", [{"log_states": True}, {"cut": True}], ids=["a state after every call", "after a save"]
)
def test_from_a_state_no_call_is_done_again_however_many_there_were(
    tmp_path: Path, turns: int, options: dict[str, Any]
) -> None:
    assert asyncio.run(_restarted(tmp_path, turns, **options)) == [], "nothing of it is worth a word"


@TURNS
def test_calls_since_the_last_state_are_done_again_and_counted(tmp_path: Path, turns: int) -> None:
    """Between two saves only seeding leaves a state, unless `log_states` is asked for."""
    (back,) = asyncio.run(_restarted(tmp_path, turns))
    assert (back.tier, back.redone) == ("newest", turns)


class Repeatable(Tiny):
    """Seeding draws nothing, so that all of its calls can be executed again."""

    async def on_seed_session(self, session: str, body: Mapping[str, Any]) -> object:
        self.session_id_to_counter[session] = body["start"]
        return {}


@TURNS
def test_replay_takes_as_many_calls_as_there_were_and_is_declared(tmp_path: Path, turns: int) -> None:
    async def declared() -> str:
        async with running(tmp_path / "declared", Repeatable, capability="replay") as server:
            return str((await server.told("status")).capability)

    assert asyncio.run(declared()) == "replay"
    (back,) = asyncio.run(_restarted(tmp_path / "run", turns, Repeatable, cut=True, capability="replay"))
    assert (back.tier, back.redone) == ("replayed", 1 + turns)


class Slow(Tiny):
    """What is executed again in the second process is never answered."""

    hangs = False

    async def on_add(self, session: str, body: Mapping[str, Any]) -> object:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().on_add(session, body)


def test_a_call_that_hangs_when_it_is_done_again_costs_its_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unbroken.adapters.nemo_gym.server.redo._LEAST", 0.2)

    async def scenario() -> None:
        async with running(tmp_path, Slow) as server:
            bad = (await server.post("/seed_session", {"start": 3}, rollout="bad", call="1")).cookie
            await server.post("/add", {"count": 1}, cookie=bad, rollout="bad", call="2")
            good = (await server.post("/seed_session", {"start": 4}, rollout="good", call="1")).cookie
        monkeypatch.setattr(Slow, "hangs", True)
        async with running(tmp_path, Slow, restored=False) as server:
            await until(lambda: bool(server.participant.in_flight()))
            status = await server.told("status")
            assert (status.phase, [call.path for call in status.in_flight]) == ("restoring", ["/add"])
            assert (await server.post("/value", cookie=good, rollout="good", call="2")).json == {"count": 4}
            assert (
                await server.post("/value", cookie=bad, rollout="bad", call="3")
            ).refused == "lost session"
            (listed,) = (await server.told("status")).recovery.listed
            assert "is not answered within 0.2 s" in listed.reasons[0]
            assert (await server.told("status")).in_flight == ()

    asyncio.run(scenario())

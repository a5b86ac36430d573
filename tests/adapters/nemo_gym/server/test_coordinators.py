"""Two trainers, or two requests of one, that want different things of a server at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.control import Committed, Drop, Export, Exported, Prepare, Quiesce, Refusal
from unbroken.errors import StoreError

from .tiny import Running, Tiny, running, until


async def _held(server: Running) -> tuple[asyncio.Event, asyncio.Task[Any]]:
    """Have a call under way; return what lets it go on, and the call."""
    cookie = (await server.post("/seed_session", {"start": 3}, rollout="held", call="1")).cookie
    hold = server.server._unbroken_hold = asyncio.Event()
    call = asyncio.create_task(server.post("/add", {"count": 2}, cookie=cookie, rollout="held", call="2"))
    await server.server._unbroken_held.wait()
    return hold, call


async def _until_closed(server: Running) -> None:
    await until(lambda: not server.participant.gate.is_open)


def test_a_server_that_is_released_while_it_drains_is_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            hold, call = await _held(server)
            draining = asyncio.create_task(server.told("quiesce", Quiesce(timeout=60)))
            await _until_closed(server)
            await server.told("release")
            hold.set()
            assert (await call).status == 200
            refused = await draining
            assert (refused.kind, "was opened" in refused.error) == ("busy", True)
            assert (await server.told("status")).phase == "open"
            assert isinstance(await server.told("export", Export()), Refusal)

    asyncio.run(scenario())


def test_of_two_who_quiesce_none_reads_while_a_call_is_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            hold, call = await _held(server)
            early = asyncio.create_task(server.told("quiesce", Quiesce(timeout=0.01)))
            await _until_closed(server)
            late = asyncio.create_task(server.told("quiesce", Quiesce(timeout=60)))
            assert (await early).kind == "busy"
            assert not server.participant.gate.is_open
            hold.set()
            await call
            assert isinstance(await late, control.Nothing)
            waiting = asyncio.create_task(server.post("/seed_session", {}, rollout="r", call="1"))
            exported = await server.told("export", Export())
            assert isinstance(exported, Exported)
            assert len(exported.records) == 1
            assert not waiting.done()
            await server.told("release")
            assert (await waiting).status == 200

    asyncio.run(scenario())


def test_the_drain_of_a_trainer_that_was_replaced_leaves_the_server_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            hold, call = await _held(server)
            draining = asyncio.create_task(server.told("quiesce", Quiesce(timeout=60)))
            await _until_closed(server)
            await server.adopted()
            assert server.participant.gate.is_open
            hold.set()
            await call
            assert (await draining).kind == "fenced"
            assert (await server.told("status")).phase == "open"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ("export", Export()),
        ("committed", Committed(mark=1)),
        ("drop", Drop(rollouts=["a"])),
        ("activate", control.Activate()),
    ],
)
def test_what_waited_while_another_trainer_came_does_nothing(
    tmp_path: Path, operation: str, asked: Any
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            await server.post("/seed_session", {}, rollout="a", call="1")
            await server.told("quiesce", Quiesce(timeout=300))
            await server.told("prepare", Prepare())
            async with server.participant.turn:  # as if another operation took its time
                late = asyncio.create_task(server.told(operation, asked))
                await asyncio.sleep(0)
                await server.adopted()
            assert (await late).kind == "fenced"
            assert [s.rollout for s in (await server.told("sessions")).sessions] == ["a"]
            assert server.participant.saved == 0

    asyncio.run(scenario())


class Waits(Tiny):
    """Calls that are executed again wait."""

    go_on = asyncio.Event()
    entered = asyncio.Event()

    async def on_seed_session(self, session: str, body: Any) -> object:
        self.session_id_to_counter[session] = body["start"]
        return {"ok": True}

    async def on_add(self, session: str, body: Any) -> object:
        self.entered.set()
        await self.go_on.wait()
        return await super().on_add(session, body)


def test_who_takes_over_while_a_checkpoint_is_put_in_place_gets_it_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        Waits.go_on, Waits.entered = asyncio.Event(), asyncio.Event()
        Waits.go_on.set()
        async with running(tmp_path / "1", Waits, capability="replay") as server:
            await server.adopted()
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="a", call="1")).cookie
            await server.post("/add", {"count": 1}, cookie=cookie)
            exported = await server.cut()
        async with running(tmp_path / "2", Waits, capability="replay") as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            await server.told("prepare", Prepare(records=exported.records))
            Waits.go_on.clear()
            Waits.entered.clear()
            activating = asyncio.create_task(server.told("activate", control.Activate()))
            await asyncio.wait_for(Waits.entered.wait(), 30)
            status = await server.told("status")
            assert (status.phase, [call.path for call in status.in_flight]) == ("restoring", ["/add"])
            epoch = server.epoch
            others = [
                asyncio.create_task(server.told("adopt", control.Adopt(run="another"))),
                asyncio.create_task(server.told("release")),
                asyncio.create_task(server.told("drop", Drop(rollouts=["a"]))),
            ]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(task.done() for task in others)
            Waits.go_on.set()
            assert (await activating).sessions == 1
            adopted, released, dropped = await asyncio.gather(*others)
            assert adopted.epoch == epoch + 1
            assert {released.kind, dropped.kind} == {"fenced"}
            assert (await server.told("status")).sessions == 1
            assert not server.participant.gate.is_open

    asyncio.run(scenario())


def test_a_server_that_fails_while_a_checkpoint_is_put_in_place_stays_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="a", call="1")).cookie
            digests = await server.digests()
            lineage = (await server.told("status")).lineage
            await server.told("quiesce", Quiesce(timeout=300))
            await server.told("prepare", Prepare())

            async def fail(*_: object) -> object:
                raise RuntimeError("something nobody thought of")

            monkeypatch.setattr(server.participant, "bring_back", fail)
            refused = await server.told("activate", control.Activate())
            assert (refused.kind, "nobody thought of" in refused.error) == ("closed", True)
            assert (await server.told("release")).kind == "closed"
            assert (await server.told("status")).phase == "closed"
            assert (await server.post("/value", cookie=cookie)).refused == "closed"
        async with running(tmp_path) as server:
            assert (await server.told("status")).lineage == lineage
            assert await server.digests() == digests, "the log is as it was"

    asyncio.run(scenario())


def test_calls_at_the_door_of_a_server_whose_log_fails_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = (await server.post("/seed_session", {"start": 3}, rollout="a", call="1")).cookie
            await server.told("quiesce", Quiesce(timeout=300))
            waiting = [
                asyncio.create_task(server.post("/value", cookie=cookie, method=method))
                for method in ("POST", "GET")
            ]
            await asyncio.sleep(0)

            def full(*_: object) -> int:
                raise StoreError("The disk is full.", key="log")

            monkeypatch.setattr(server.participant.log, "append", full)
            assert "disk is full" in (await server.told("export", Export())).error
            assert [answer.refused for answer in await asyncio.gather(*waiting)] == ["closed", "closed"]
            assert (await server.told("release")).kind == "closed"

    asyncio.run(scenario())

"""What a trainer asks for: cuts under load, what has changed, another state in the place of all, forgetting."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym import control, records
from unbroken.adapters.nemo_gym.control import (
    Committed,
    Drop,
    Export,
    Exported,
    Prepare,
    Quiesce,
    Record,
    Refusal,
)
from unbroken.adapters.nemo_gym.server.participant import Participant

from .tiny import Running, Tiny, running


def _prepare(exported: Exported, **changes: Any) -> Prepare:
    asked = Prepare(records=exported.records, shared=exported.shared, media=exported.media)
    return msgspec.structs.replace(asked, **changes)


async def _seeded(server: Running, rollout: str, start: int = 3) -> str:
    return (await server.post("/seed_session", {"start": start}, rollout=rollout, call="1")).cookie


def test_every_cut_under_load_holds_what_was_acknowledged(tmp_path: Path) -> None:
    """H2: what is exported is what was acknowledged before the cut, under the revision of its last call."""

    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookies = [await _seeded(server, f"r{number}", 0) for number in range(5)]
            acknowledged = [0] * 16
            sent = [0] * 16
            stop, progress = asyncio.Event(), asyncio.Event()

            async def client(number: int) -> None:
                while not stop.is_set():
                    sent[number] += 1
                    answer = await server.post(
                        "/add", {"count": 1}, cookie=cookies[number % 5], call=f"{number}/{sent[number]}"
                    )
                    assert answer.status == 200
                    assert not answer.replayed
                    acknowledged[number] += 1
                    progress.set()

            clients = [asyncio.create_task(client(number)) for number in range(16)]
            kept: dict[str, records.SessionRecord] = {}
            mark, lineage = 0, ""
            for _ in range(20):
                before = sum(acknowledged)
                while sum(acknowledged) < before + 16:  # there is traffic between the cuts
                    await progress.wait()
                    progress.clear()
                await server.told("quiesce", Quiesce(timeout=300))
                exported = await server.told("export", Export(lineage=lineage, mark=mark))
                done = sum(acknowledged)
                kept |= {record.key: records.session(record.data) for record in exported.records}
                states = [record.state for record in kept.values() if record.state is not None]
                values = [server.participant.states.decode(state).value for state in states]
                assert sum(value["session_id_to_counter"] for value in values) == done
                assert sum(len(record.calls) - 1 for record in kept.values()) == done
                for record, value in zip(kept.values(), values, strict=True):
                    assert record.revision == record.state_revision == len(record.calls)
                    assert value["session_id_to_counter"] == record.revision - 1, "each call adds one"
                mark, lineage = exported.mark, exported.lineage
                await server.told("release")
            stop.set()
            await asyncio.gather(*clients)
            assert sum(server.server.session_id_to_counter.values()) == sum(acknowledged)

    asyncio.run(scenario())


def test_a_cut_gives_what_has_changed_since_the_one_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            first, second = await _seeded(server, "a"), await _seeded(server, "b")
            every = await server.cut()
            assert (every.complete, len(every.records)) == (True, 2)
            assert (await server.cut(every.lineage, every.mark)).records == []
            await server.post("/add", {"count": 1}, cookie=second)
            some = await server.cut(every.lineage, every.mark)
            assert not some.complete
            assert [records.session(record.data).rollout for record in some.records] == ["b"]
            assert (await server.cut("another", some.mark)).complete
            await server.told("drop", Drop(rollouts=["a"]))
            gone = await server.cut(some.lineage, some.mark)
            assert [record.data for record in gone.records] == [b""]
            unknown = await server.post("/value", cookie=first)
            assert unknown.refused == "unknown session"
            refused = await server.told("export", Export())
            assert isinstance(refused, Refusal)
            assert "Quiesce it first" in refused.error
        async with running(tmp_path) as server:
            again = await (await server.adopted()).cut(gone.lineage, gone.mark)
            assert again.lineage == gone.lineage
            assert again.complete, "marks of an earlier process are not taken for this one's"
            assert [record.key for record in again.records] == list(server.server.session_id_to_counter)

    asyncio.run(scenario())


def test_after_a_cut_little_is_done_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            for _ in range(5):
                await server.post("/draw", cookie=cookie)
            await server.cut()
            await server.post("/draw", cookie=cookie)
            digests = await server.digests()
        async with running(tmp_path) as server:
            assert server.server._unbroken_executed == ["/draw"]
            assert await server.digests() == digests

    asyncio.run(scenario())


def test_who_asks_for_sessions_while_they_are_brought_back_gets_all(tmp_path: Path) -> None:
    class Slow(Tiny):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._unbroken_hold = go_on

    go_on = asyncio.Event()

    async def scenario() -> None:
        async with running(tmp_path) as server:
            cookie = await _seeded(server, "a")
            await server.post("/add", {"count": 1}, cookie=cookie)
            digests = await server.digests()
        async with running(tmp_path, Slow, restored=False) as server:
            await server.server._unbroken_held.wait()
            asked = [asyncio.create_task(server.told(what)) for what in ("sessions", "digests")]
            assert (await server.told("status")).phase == "restoring"
            await asyncio.sleep(0)
            assert not any(task.done() for task in asked), "none would be a wrong answer"
            go_on.set()
            for answer in await asyncio.gather(*asked):
                assert [summary.id for summary in answer.sessions] == list(digests)
            assert await server.digests() == digests

    asyncio.run(scenario())


def test_a_drained_server_opens_again_if_a_call_takes_too_long(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            hold = server.server._unbroken_hold = asyncio.Event()
            call = asyncio.create_task(server.post("/add", {"count": 1}, cookie=cookie))
            await server.server._unbroken_held.wait()
            refused = await server.told("quiesce", Quiesce(timeout=0.01))
            assert refused.kind == "busy"
            assert "/add" in refused.names[0]
            assert (await server.told("status")).phase == "open"
            hold.set()
            assert (await call).status == 200

    asyncio.run(scenario())


def test_a_checkpoint_in_the_place_of_all_there_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "1") as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            await server.post("/draw", cookie=cookie)
            exported = await server.cut()
            digests = await server.digests()
            after = (await server.post("/draw", cookie=cookie, rollout="a", call="3")).json
        async with running(tmp_path / "2") as server:
            await server.adopted()
            other = await _seeded(server, "other", 9)
            lineage = (await server.told("status")).lineage
            assert (await server.told("prepare", _prepare(exported))).problems == ()
            assert len(server.server.session_id_to_counter) == 1, "nothing is touched yet"
            refused = await server.told("activate", control.Activate())
            assert (refused.kind, len(server.server.session_id_to_counter)) == ("busy", 1)
            await server.told("quiesce", Quiesce(timeout=300))
            recovery = await server.told("activate", control.Activate())
            assert (recovery.source, recovery.sessions, recovery.listed) == ("checkpoint", 1, ())
            assert (await server.told("status")).phase == "quiesced"
            assert (await server.told("status")).lineage != lineage
            assert await server.digests() == digests
            await server.told("release")
            assert (await server.post("/value", cookie=other)).refused == "unknown session"
            assert (await server.post("/draw", cookie=cookie, rollout="a", call="3")).json == after
        async with running(tmp_path / "2") as server:
            assert (await server.post("/draw", cookie=cookie, rollout="a", call="3")).replayed, (
                "it is the log now"
            )
            (session,) = (await server.told("sessions")).sessions
            assert session.revision == 3

    asyncio.run(scenario())


def test_a_record_that_cannot_be_used_costs_its_session_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "1") as server:
            await server.adopted()
            cookies = {rollout: await _seeded(server, rollout) for rollout in ("a", "b", "c")}
            exported = await server.cut()
        keys = {records.session(record.data).rollout: record.key for record in exported.records}
        spoilt: list[Record] = []
        for record in exported.records:
            session = records.session(record.data)
            if session.rollout == "b":
                assert session.state is not None
                session.state = msgspec.structs.replace(session.state, data=session.state.data[:-1] + b"!")
                record = Record(key=record.key, data=records.encode(session))  # noqa: PLW2901
            if session.rollout == "c":
                record = Record(key=record.key, data=record.data[:40])  # noqa: PLW2901
            spoilt.append(record)
        async with running(tmp_path / "2") as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            prepared = await server.told("prepare", _prepare(exported, records=spoilt))
            assert {problem.key for problem in prepared.problems} == {keys["b"], keys["c"]}
            recovery = await server.told("activate", control.Activate())
            assert {r.id: r.tier for r in recovery.listed} == {keys["b"]: "refused", keys["c"]: "refused"}
            await server.told("release")
            assert (await server.post("/value", cookie=cookies["a"])).json == {"count": 3}
            for rollout in ("b", "c"):
                assert (await server.post("/value", cookie=cookies[rollout])).refused == "lost session"

    asyncio.run(scenario())


def test_media_travel_with_the_records_that_name_them(tmp_path: Path) -> None:
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 32).decode()

    async def scenario() -> None:
        async with running(tmp_path / "1") as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            before = await server.cut()
            told = await server.post("/look", {"image": image}, cookie=cookie, rollout="a", call="2")
            assert json.loads(told.json["said"]) == {"image": image}
            exported = await server.cut(before.lineage, before.mark)
            assert len(exported.media) == 1
            assert len(exported.records[0].data) < len(image) / 2
            assert (await server.cut(exported.lineage, exported.mark)).media == {}
        async with running(tmp_path / "2") as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            await server.told("prepare", _prepare(exported))
            await server.told("activate", control.Activate())
            await server.told("release")
            again = await server.post("/look", {"image": image}, cookie=cookie, rollout="a", call="2")
            assert (again.replayed, again.body) == (True, told.body)

    asyncio.run(scenario())


def test_dropped_rollouts_free_their_memory_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            await _seeded(server, "a")
            await _seeded(server, "b")
            await server.told("drop", Drop(rollouts=["a", "never heard of"]))
            assert len(server.server.session_id_to_counter) == len(server.server.session_id_to_rng) == 1
        async with running(tmp_path) as server:
            assert [s.rollout for s in (await server.told("sessions")).sessions] == ["b"]

    asyncio.run(scenario())


def test_a_long_log_is_made_short_once_a_checkpoint_has_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("unbroken.adapters.nemo_gym.server.participant._SLACK", 1000)

    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            for _ in range(20):
                await server.post("/add", {"count": 1}, cookie=cookie)
                await server.cut()
            mark = (await server.cut()).mark
            hold = server.server._unbroken_hold = asyncio.Event()
            call = asyncio.create_task(
                server.post("/add", {"count": 1}, cookie=cookie, rollout="a", call="9")
            )
            await server.server._unbroken_held.wait()
            size = server.participant.log.size
            await server.told("committed", Committed(mark=mark))
            assert server.participant.log.size < size / 2
            hold.set()
            assert (await call).status == 200
            digests = await server.digests()
            epoch = server.epoch
        async with running(tmp_path) as server:
            assert await server.digests() == digests
            assert server.participant.epoch == epoch
            answer = await server.post("/add", {"count": 1}, cookie=cookie, rollout="a", call="9")
            assert answer.replayed, "it had begun before the log was made short, and ended after"

    asyncio.run(scenario())


class Shop(Tiny):
    """Has something that all sessions share."""

    def __init__(self, *, name: str = "res", num_workers: int = 1) -> None:
        super().__init__(name=name, num_workers=num_workers)
        self.sold: dict[str, int] = {"apples": 0}

    async def on_buy(self, session: str, body: dict[str, Any]) -> object:
        self.session_id_to_counter[session] = self.session_id_to_counter.get(session, 0) + body["count"]
        self.sold["apples"] += body["count"]
        return {"left": 100 - self.sold["apples"]}


def test_what_sessions_share_comes_back_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Shop) as server:
            await server.adopted()
            first = await _seeded(server, "a")
            await server.post("/buy", {"count": 2}, cookie=first)
            await server.cut()
            second = await _seeded(server, "b")
            await server.post("/buy", {"count": 3}, cookie=first)
            await server.post("/buy", {"count": 5}, cookie=second)
            last = await server.cut()
            await server.post("/buy", {"count": 7}, cookie=first)
            shop: Any = server.server
            assert shop.sold == {"apples": 17}
        async with running(tmp_path, Shop) as server:
            shop = server.server
            assert shop.sold == {"apples": 17}
            assert (await server.told("status")).cache
        async with running(tmp_path / "2", Shop) as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            await server.told("prepare", _prepare(last))
            await server.told("activate", control.Activate())
            shop = server.server
            assert shop.sold == {"apples": 10}

    asyncio.run(scenario())


def test_sessions_that_wait_for_each_other_are_drained_and_not_saved(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, capability="drain_only") as server:
            await server.adopted()
            cookie = await _seeded(server, "a")
            await server.told("quiesce", Quiesce(timeout=300))
            refused = await server.told("export", Export())
            assert (refused.kind, len(refused.names)) == ("busy", 1)
            await server.told("release")
            await server.post("/verify", {"expected": 3}, cookie=cookie, rollout="a", call="v")
            exported = await server.cut()
            assert records.session(exported.records[0].data).status == "retired"
        async with running(tmp_path, capability="drain_only") as server:
            again = await server.post("/verify", {"expected": 3}, cookie=cookie, rollout="a", call="v")
            assert (again.replayed, again.json) == (True, {"reward": 1.0})

    asyncio.run(scenario())


def test_status_says_what_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await _seeded(server, "a")
            status = await server.told("status")
            assert (status.role, status.name, status.class_name) == ("resources", "res", "Tiny")
            assert (status.phase, status.capability) == ("open", "snapshot")
            assert (status.sessions, status.rollouts) == (1, 1)
            assert status.recovery.source == "nothing"
            assert {tool.path for tool in status.tools} >= {"/seed_session", "/add", "/verify"}
            assert status.versions["python"]
            (session,) = (await server.told("sessions")).sessions
            assert (session.rollout, session.revision, session.last, session.status) == (
                "a",
                1,
                "/seed_session",
                "open",
            )
            assert session.digest == (await server.digests())[session.id]
            assert isinstance(server.participant, Participant)

    asyncio.run(scenario())

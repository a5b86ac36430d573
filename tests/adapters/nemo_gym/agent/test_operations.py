"""What a coordinator has an agent do, over the control requests that it sends."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row, until
from unbroken.adapters.nemo_gym import records, words
from unbroken.adapters.nemo_gym.control import (
    Activate,
    Adopt,
    Committed,
    Drop,
    Epoch,
    Export,
    Exported,
    Nothing,
    Prepare,
    Prepared,
    Quiesce,
    Record,
    Recovery,
    Refusal,
    Sessions,
    Status,
)
from unbroken.adapters.nemo_gym.records import RolloutRecord


async def two_turns(client: Any, request: Any) -> Any:
    if request[0] == "/v1/responses":
        for turn in range(2):
            await client.post("model", "/v1/responses", json={"turn": turn})
        return {}
    await client.post("agent", "/v1/responses", json={})
    return {"reward": (await client.post("res", "/verify", json={})).status / 200}


class Turns:
    """Servers that answer one call for each time that they are let."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.let: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, made: SimpleNamespace) -> Said:
        self.asked.put_nowait(made.path)
        await self.let.get()
        return Said(made.path)


def test_a_cut_parks_a_rollout_between_two_calls(tmp_path: Path) -> None:
    async def scenario() -> None:
        turns = Turns()
        toy = Toy(tmp_path / "a", two_turns, turns)
        assert await toy.control("adopt", Adopt(run="one")) == Epoch(epoch=1)
        running = asyncio.create_task(toy.run(row()))
        await turns.asked.get()

        busy = await toy.control("quiesce", Quiesce(timeout=0.01))
        assert isinstance(busy, Refusal)
        assert busy.kind == "busy"
        assert "r model/v1/responses" in busy.names[0]
        assert len(busy.names) == 1  # the agent's call to itself is none
        assert (await toy.control("status")).phase == "open"

        cut = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        await until(lambda: not toy.agent.gate.is_open)
        turns.let.put_nowait(None)
        assert await cut == Nothing()
        waiting = asyncio.create_task(toy.run(row("later")))
        exported: Exported = await toy.control("export", Export())
        status: Status = await toy.control("status")
        assert (status.phase, status.rollouts, status.in_flight) == ("quiesced", 1, ())
        assert (exported.mark, exported.lineage) == (status.mark, status.lineage)
        (record,) = exported.records
        assert [answer.path for answer in records.rollout(record.data).answers] == ["/v1/responses"]
        assert turns.asked.empty()

        await toy.control("release")
        for _ in range(6):
            turns.let.put_nowait(None)
        assert [json.loads(reply.body) for reply in await asyncio.gather(running, waiting)] == [
            {"reward": 1.0}
        ] * 2
        assert await toy.control("committed", Committed(mark=exported.mark)) == Nothing()
        open_export = await toy.control("export", Export())
        assert isinstance(open_export, Refusal)
        await toy.control("quiesce", Quiesce(timeout=300))
        later: Exported = await toy.control("export", Export(lineage=exported.lineage, mark=exported.mark))
        assert not later.complete
        assert {record.key for record in later.records} == {"r", "later"}
        await toy.agent.close()

        back = Toy(
            tmp_path / "b", two_turns, turns, opened=False
        )  # another machine: only the checkpoint is there
        await back.control("adopt", Adopt(run="one"))
        assert (await back.control("status")).phase == "closed"
        prepared: Prepared = await back.control(
            "prepare",
            Prepare(records=[record, Record(key="bad", data=b"?"), Record(key="r2", data=record.data)]),
        )
        assert prepared.records == 1
        assert [problem.key for problem in prepared.problems] == ["bad", "r2"]
        assert not back.journal.records
        recovery: Recovery = await back.control("activate", Activate())
        assert (recovery.source, recovery.rollouts) == ("checkpoint", 1)
        assert {r.id for r in recovery.listed} == {"bad", "r2"}
        again = asyncio.create_task(back.run(row()))
        await asyncio.sleep(0)
        assert not back.calls
        await back.control("release")
        for _ in range(2):
            turns.let.put_nowait(None)
        assert json.loads((await again).body) == {"reward": 1.0}
        status = await back.control("status")
        assert (status.model_calls, status.replayed) == (1, 1)
        assert [call.path for call in back.calls] == ["/v1/responses", "/v1/responses", "/verify"]
        await back.agent.close()

    asyncio.run(scenario())


def test_an_older_coordinator_is_fenced_and_an_unknown_operation_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        toy = Toy(tmp_path, two_turns, Turns())
        await toy.control("adopt", Adopt(run="one"))
        await toy.control("adopt", Adopt(run="two"))
        fenced = await toy.control("release", epoch=1)
        assert isinstance(fenced, Refusal)
        assert fenced.kind == "fenced"
        assert (await toy.control("activate", Activate())).kind == "other"
        assert (await toy.control("policy")).kind == "other"
        await toy.agent.close()

        again = Toy(tmp_path, two_turns, Turns())
        assert again.journal.epoch == 2
        await again.agent.close()

    asyncio.run(scenario())


def test_a_checkpoint_ends_the_rollouts_that_ran(tmp_path: Path) -> None:
    async def scenario() -> None:
        turns = Turns()
        toy = Toy(tmp_path, two_turns, turns)
        running = asyncio.create_task(toy.run(row()))
        await turns.asked.get()
        await toy.control("prepare", Prepare())
        assert (await toy.control("activate", Activate())).kind == "other"
        turns.let.put_nowait(None)
        await turns.asked.get()
        cut = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        await until(lambda: not toy.agent.gate.is_open)
        turns.let.put_nowait(None)
        await cut
        await toy.control(
            "prepare", Prepare(records=[Record(key="x", data=records.encode(RolloutRecord(id="x")))])
        )
        await toy.control("activate", Activate())
        stopped = await running
        assert stopped.status == 409
        assert set(toy.journal.records) == {"x"}
        await toy.agent.close()

    asyncio.run(scenario())


def test_what_is_dropped_is_gone_and_the_others_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        turns = Turns()
        toy = Toy(tmp_path, two_turns, turns)
        for _ in range(6):
            turns.let.put_nowait(None)
        await toy.run(row("a"))
        await toy.run(row("b"), attempt=1)
        summaries: Sessions = await toy.control("digests")
        told = {summary.id: summary for summary in summaries.sessions}
        assert {i: (s.attempt, s.revision, s.status, s.last) for i, s in told.items()} == {
            "a": (0, 4, "finished", "/verify"),
            "b": (1, 4, "finished", "/verify"),
        }
        assert told["a"].digest == told["b"].digest
        await toy.control("drop", Drop(rollouts=["a"]))
        assert [s.id for s in (await toy.control("sessions")).sessions] == ["b"]
        await toy.agent.close()
        again = Toy(tmp_path, two_turns, turns)
        assert set(again.journal.records) == {"b"}
        await again.agent.close()

    asyncio.run(scenario())


def picture(fill: int) -> dict[str, str]:
    return {"image": "data:image/png;base64," + base64.b64encode(bytes([fill]) * 6000).decode()}


def blobs(directory: Path) -> list[Path]:
    return [path for path in (directory / "media").rglob("*") if path.is_file()]


async def looking(client: Any, request: Any) -> Any:
    """An agent that makes a result of whatever it meets, and gives it with a picture."""
    try:
        await (await client.post("res", "/picture", json={})).read()
        await client.post("res", "/verify", json={})
    except Exception as error:  # noqa: BLE001  (that is what such agents do)
        return {"reward": 0.0, "error": repr(error)}
    return {"reward": 1.0, **picture(9)}


class Pictures:
    """A server whose verification is answered once it is let."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self, made: SimpleNamespace) -> Said:
        if made.path == "/verify":
            self.asked.set()
            await self.let.wait()
        return Said(picture(1))


def test_a_rollout_that_has_lost_an_image_is_refused_and_does_not_stop_a_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        pictures = Pictures()
        toy = Toy(tmp_path, looking, pictures)
        await toy.control("adopt", Adopt(run="one"))
        asked = asyncio.create_task(toy.run(row(), attempt=0))
        await pictures.asked.wait()
        (blob,) = blobs(tmp_path)
        blob.write_bytes(b"rot")
        cut = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        await until(lambda: not toy.agent.gate.is_open)
        pictures.let.set()
        assert await cut == Nothing()
        exported: Exported = await toy.control("export", Export())
        (given,) = exported.records
        assert (given.key, records.rollout(given.data).answers) == ("r", [])
        refused = await asked
        assert (refused.status, refused.header(words.REFUSED)) == (503, "lost session")
        assert "damaged" in json.loads(refused.body)["error"]
        status: Status = await toy.control("status")
        assert [(one.id, one.tier) for one in status.recovery.listed] == [("r", "fresh")]
        await toy.control("release")
        assert json.loads((await toy.run(row(), attempt=1)).body)["reward"] == 1.0
        await toy.agent.close()

    asyncio.run(scenario())
    assert "r cannot be saved, it begins anew" in capsys.readouterr().err


def test_an_answer_that_cannot_be_read_is_no_reward(tmp_path: Path) -> None:
    async def scenario() -> None:
        pictures = Pictures()
        toy = Toy(tmp_path, looking, pictures)
        asked = asyncio.create_task(toy.run(row(), attempt=0))
        await pictures.asked.wait()
        await toy.agent.close()
        await asked
        (blob,) = blobs(tmp_path)
        blob.unlink()
        pictures.let.set()
        again = Toy(tmp_path, looking, pictures)
        refused = await again.run(row(), attempt=0)
        assert (refused.status, refused.header(words.REFUSED)) == (503, "lost session")
        assert b"reward" not in refused.body
        assert json.loads((await again.run(row(), attempt=1)).body) == {"reward": 1.0, **picture(9)}
        await again.agent.close()

    asyncio.run(scenario())


def test_a_result_that_cannot_be_read_is_computed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        pictures = Pictures()
        pictures.let.set()
        toy = Toy(tmp_path, looking, pictures)
        first = await toy.run(row(), attempt=0)
        await toy.agent.close()
        for blob in blobs(tmp_path):
            blob.write_bytes(b"rot")
        again = Toy(tmp_path, looking, pictures)
        reply = await again.run(row(), attempt=1)
        assert (reply.body, reply.header(words.REPLAYED)) == (first.body, "")
        assert again.paths() == ["/picture", "/verify"]
        assert (await again.run(row(), attempt=2)).header(words.REPLAYED) == "1"
        await again.agent.close()

    asyncio.run(scenario())


def test_a_checkpoint_with_damaged_media_loses_the_rollouts_that_name_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        pictures = Pictures()
        pictures.let.set()
        source = Toy(tmp_path / "a", looking, pictures)
        await source.control("adopt", Adopt(run="one"))
        await source.run(row())
        await source.control("quiesce", Quiesce(timeout=300))
        exported: Exported = await source.control("export", Export())
        await source.control("committed", Committed(mark=exported.mark))
        status: Status = await source.control("status")
        assert (status.committed, status.mark) == (exported.mark, exported.mark)
        assert status.first_mark <= status.mark
        summaries: Sessions = await source.control("sessions")
        assert [summary.digest for summary in summaries.sessions] == [""]  # only `digests` computes them
        await source.agent.close()

        target = Toy(tmp_path / "b", looking, pictures, opened=False)
        await target.control("adopt", Adopt(run="one"))
        lineage = target.journal.lineage
        spoilt = {digest: data[:-1] + b"?" for digest, data in exported.media.items()}
        prepared: Prepared = await target.control("prepare", Prepare(records=exported.records, media=spoilt))
        assert (prepared.records, [problem.key for problem in prepared.problems]) == (0, ["r"])
        assert "damaged" in prepared.problems[0].what
        prepared = await target.control("prepare", Prepare(records=exported.records, media=exported.media))
        assert (prepared.records, prepared.problems) == (1, ())
        await target.control("activate", Activate())
        status = await target.control("status")
        assert status.lineage not in {lineage, exported.lineage}
        assert status.committed == 0
        await target.control("release")
        reply = await target.run(row())
        assert (json.loads(reply.body), target.calls) == ({"reward": 1.0, **picture(9)}, [])
        await target.agent.close()

    asyncio.run(scenario())


def test_of_overlapping_drains_only_the_newest_has_a_say(tmp_path: Path) -> None:
    async def scenario() -> None:
        turns = Turns()
        toy = Toy(tmp_path, two_turns, turns)
        await toy.control("adopt", Adopt(run="one"))
        running = asyncio.create_task(toy.run(row()))
        await turns.asked.get()
        first = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=0.05)))
        await until(lambda: not toy.agent.gate.is_open)
        second = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        assert (await first).kind == "busy"
        assert not toy.agent.gate.is_open
        assert not toy.agent.admission.is_open
        turns.let.put_nowait(None)
        assert await second == Nothing()
        assert isinstance(await toy.control("export", Export()), Exported)

        await toy.control("release")
        await turns.asked.get()
        drained = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        await until(lambda: not toy.agent.gate.is_open)
        await toy.control("release")
        await until(lambda: toy.agent.admission.is_open)
        for _ in range(3):
            turns.let.put_nowait(None)
        assert (await drained).kind == "busy"
        assert (await toy.control("status")).phase == "open"
        assert isinstance(await toy.control("export", Export()), Refusal)
        assert (await running).status == 200
        await toy.agent.close()

    asyncio.run(scenario())


def test_the_drain_of_a_trainer_that_has_lost_the_agent_ends_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        turns = Turns()
        toy = Toy(tmp_path, two_turns, turns)
        await toy.control("adopt", Adopt(run="one"))
        running = asyncio.create_task(toy.run(row()))
        await turns.asked.get()
        await toy.control("prepare", Prepare())
        drained = asyncio.create_task(toy.control("quiesce", Quiesce(timeout=300)))
        await until(lambda: not toy.agent.gate.is_open)
        assert await toy.control("adopt", Adopt(run="two")) == Epoch(epoch=2)
        for _ in range(3):
            turns.let.put_nowait(None)
        assert (await drained).kind == "fenced"
        assert (await running).status == 200  # it was opened again
        assert toy.agent.admission.is_open
        await toy.control("quiesce", Quiesce(timeout=300))
        nothing = await toy.control("activate", Activate())  # what was prepared was the other's
        assert "Nothing was prepared" in nothing.error
        await toy.agent.close()

    asyncio.run(scenario())

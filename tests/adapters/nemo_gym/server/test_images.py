"""Images: they travel with the sessions that name them, and cost one session where one is damaged."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym import control, records
from unbroken.adapters.nemo_gym.control import Committed, Drop, Export, Exported, Prepare, Quiesce, Record
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.trainer.held import Held

from .tiny import Running, running

IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 32).decode()
OTHER = "data:image/png;base64," + base64.b64encode(bytes(range(255, -1, -1)) * 32).decode()


async def _shown(server: Running, rollout: str, image: str = IMAGE) -> str:
    return (await server.post("/seed_session", {"image": image}, rollout=rollout, call="1")).cookie


def test_an_image_that_comes_again_after_it_went_is_in_the_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        async with running(tmp_path / "1") as server:
            await server.adopted()

            async def save() -> None:
                held.apply(await server.cut(held.since.lineage, held.since.mark))
                await server.told("committed", Committed(mark=held.since.mark))

            await _shown(server, "0-0")
            await save()
            await server.told("drop", Drop(rollouts=["0-0"]))
            for number in range(3):
                await server.post("/seed_session", {"start": number}, rollout=f"1-{number}", call="1")
            await save()
            await _shown(server, "2-0")
            await save()
            part = held.part(await server.told("status"))
            assert {d for blob in part.segments for d in Media.named(blob)} == set(part.media)
            before = await server.digests()
        async with running(tmp_path / "2") as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            sent = [Record(key=key, data=data) for key, data in part.records.items()]
            assert (
                await server.told("prepare", Prepare(records=sent, media=dict(part.media)))
            ).problems == ()
            assert (await server.told("activate", control.Activate())).listed == ()
            assert await server.digests() == before
            assert isinstance(await server.told("export", Export()), Exported)

    asyncio.run(scenario())


def test_a_record_whose_image_is_missing_costs_its_session_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "1") as server:
            await server.adopted()
            cookies = {"a": await _shown(server, "a"), "b": await _shown(server, "b", OTHER)}
            exported = await server.cut()
        keys = {records.session(record.data).rollout: record.key for record in exported.records}
        (lacking,) = Media.named(next(r.data for r in exported.records if r.key == keys["a"]))
        given = {digest: data for digest, data in exported.media.items() if digest != lacking}
        async with running(tmp_path / "2") as server:
            await server.adopted()
            await server.told("quiesce", Quiesce(timeout=300))
            prepared = await server.told("prepare", Prepare(records=exported.records, media=given))
            (problem,) = prepared.problems
            assert (problem.key, lacking in problem.what) == (keys["a"], True)
            recovery = await server.told("activate", control.Activate())
            assert [(r.id, r.tier) for r in recovery.listed] == [(keys["a"], "refused")]
            again = await server.told("export", Export())
            assert isinstance(again, Exported), "what is lost does not keep the others from being saved"
            assert again.media == given
            await server.told("release")
            lost = await server.post("/value", cookie=cookies["a"], rollout="a", call="2")
            assert lost.refused == "lost session"
            assert (await server.post("/value", cookie=cookies["b"], rollout="b", call="2")).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["rots", "goes"])
def test_a_damaged_image_costs_its_session_and_no_save(tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            bad = await _shown(server, "bad")
            await server.post("/seed_session", {"start": 3}, rollout="good", call="1")
        (blob,) = (path for path in (tmp_path / "media").rglob("*") if path.is_file())
        if damage == "rots":
            blob.write_bytes(b"rot" + blob.read_bytes()[3:])
        else:
            blob.unlink()
        async with running(tmp_path) as server:
            exported = await (await server.adopted()).cut()
            saved = {(s := records.session(r.data)).rollout: s for r in exported.records}
            assert (saved["good"].status, saved["bad"].status) == ("open", "refused")
            assert blob.name in saved["bad"].reason
            assert (saved["bad"].calls, exported.media) == ([], {})
            again = await server.post("/value", cookie=bad, rollout="bad", call="2")
            assert again.refused == "lost session"
            assert (await server.cut(exported.lineage, exported.mark)).records == []
        async with running(tmp_path) as server:
            assert {s.rollout: s.status for s in (await server.told("sessions")).sessions} == {
                "bad": "refused",
                "good": "open",
            }

    asyncio.run(scenario())

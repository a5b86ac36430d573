"""Servers that stay away: a rollout waits between two tries, so that saves go on, and says after a while that it cannot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from unbroken.adapters.nemo_gym import records, words
from unbroken.adapters.nemo_gym.control import Adopt, Export, Exported, Nothing, Quiesce


async def seeding(client: Any, request: Any) -> Any:
    return {"reward": (await client.post("res", "/seed_session", json={})).status / 200}


class Away:
    """A server that nobody reaches until `back` is set."""

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.tried = asyncio.Event()
        self.names: set[str] = set()

    async def __call__(self, made: SimpleNamespace) -> Said:
        self.names.add(made.headers[words.CALL])
        self.tried.set()
        if not self.back.is_set():
            raise ConnectionRefusedError("nobody listens")
        return Said({})


def test_a_rollout_whose_server_stays_away_is_answered_with_closed_and_goes_on_when_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        away = Away()
        toy = Toy(tmp_path, seeding, away)
        toy.agent.outgoing.pause = 0.01
        toy.agent.outgoing.patience = 0.05
        refused = await toy.run(row())
        assert (refused.status, refused.header(words.REFUSED)) == (503, "closed")
        said = json.loads(refused.body)["error"]
        assert "res/seed_session" in said
        assert "ConnectionRefusedError" in said
        assert len(toy.calls) > 1
        away.back.set()
        reply = await toy.run(row())
        assert json.loads(reply.body) == {"reward": 1.0}
        assert len(away.names) == 1
        await toy.agent.close()

    asyncio.run(scenario())
    said = capsys.readouterr().err
    assert said.count("cannot be reached") == 1


def test_a_save_goes_on_while_a_rollout_waits_for_a_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        away = Away()
        toy = Toy(tmp_path, seeding, away)
        toy.agent.outgoing.pause = 0.01
        asked = asyncio.create_task(toy.run(row()))
        await away.tried.wait()
        await toy.control("adopt", Adopt(run="run"))
        assert await toy.control("quiesce", Quiesce(timeout=300)) == Nothing()
        exported: Exported = await toy.control("export", Export())
        assert [records.rollout(record.data).id for record in exported.records] == ["r"]
        tries = len(toy.calls)
        away.back.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(toy.calls) == tries
        await toy.control("release")
        assert json.loads((await asked).body) == {"reward": 1.0}
        await toy.agent.close()

    asyncio.run(scenario())

"""Rows that only some readers of JSON take: what names their rollout counts, or the row is refused in a sentence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.serving.asgi import Reply, call


async def handing_on(client: Any, request: Any) -> Any:
    """Hands its row on, as agents do."""
    await client.post("res", "/seed_session", json=request[1])
    return {"reward": 1.0}


async def answering(made: Any) -> Said:
    return Said({})


async def posted(toy: Toy, body: bytes) -> Reply:
    scope = {"type": "http", "method": "POST", "path": "/run", "headers": [], "query_string": b""}
    return await asyncio.create_task(call(toy.app, scope, body))


@pytest.mark.parametrize("odd", [r'"\ud800"', "NaN", "1e999"])
def test_an_id_counts_whatever_else_the_row_says(tmp_path: Path, odd: str) -> None:
    async def scenario() -> None:
        toy = Toy(tmp_path, handing_on, answering)
        body = f'{{"_ng_rollout_id": "r", "_ng_attempt_index": 2, "prompt": {odd}}}'.encode()
        reply = await posted(toy, body)
        assert (reply.status, reply.header(words.REFUSED)) == (200, "")
        assert [made.headers[words.ROLLOUT] for made in toy.calls] == ["r"]
        assert toy.journal.records["r"].attempt == 2
        assert toy.journal.records["r"].body == body
        await toy.agent.close()

        again = Toy(tmp_path, handing_on, answering)
        assert (await posted(again, body)).header(words.REPLAYED) == "1"
        assert not again.calls
        await again.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"_ng_rollout_id": "r", "prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "too deeply"),
        (rb'{"_ng_rollout_id": "r\ud800"}', "_ng_rollout_id"),
        (rb'{"_ng_rollout_id": "r", "_unbroken_policy_version": "\ud800"}', "_unbroken_policy_version"),
        (b'{"_ng_rollout_id": "r", "_ng_attempt_index": 1e999}', "inf"),
        (b'{"_ng_rollout_id": "r", "_ng_attempt_index": 99999999999999999999999}', "99999"),
    ],
)
def test_a_row_whose_rollout_cannot_be_told_is_refused(tmp_path: Path, body: bytes, why: str) -> None:
    async def scenario() -> None:
        toy = Toy(tmp_path, handing_on, answering)
        refused = await posted(toy, body)
        assert (refused.status, refused.header(words.REFUSED)) == (400, "format")
        assert why in msgspec.json.decode(refused.body)["error"]
        assert not toy.journal.records
        assert not toy.calls
        assert (await toy.run(row())).status == 200  # others are none the worse for it
        await toy.agent.close()

    asyncio.run(scenario())

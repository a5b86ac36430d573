"""Two agents over one resources server: the same id, or the same row without one, is a rollout of each of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.test_incarnations import World, adding
from tests.adapters.nemo_gym.agent.toys import Toy, row
from tests.adapters.nemo_gym.server.tiny import running
from unbroken.adapters.nemo_gym import words


@pytest.mark.parametrize("asked", [row(), {"_ng_task_index": 3, "_ng_rollout_index": 1}, {"now": 1}])
def test_each_has_a_session_of_its_own(
    tmp_path: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they have drawn the same incarnation, as two copies of one log have."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "same")

    async def scenario() -> None:
        async with running(tmp_path / "res") as server:
            told: list[set[str]] = []
            for name in ("one", "two"):
                world = World(server)
                world.held = False
                toy = Toy(tmp_path / name, adding, world, name=name)
                assert json.loads((await toy.run(asked)).body) == {"reward": 1.0, "said": [10, 20, 30]}
                told.append({made.headers[words.ROLLOUT] for made in toy.calls})
                await toy.agent.close()
            assert list(server.server.session_id_to_counter.values()) == [60, 60]
            given = "_ng_rollout_id" in asked  # what a trainer has given stays as it gave it
            assert (told[0] == told[1]) is given

    asyncio.run(scenario())

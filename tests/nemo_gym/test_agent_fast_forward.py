"""An agent that dies after any number of answers goes on where it was: the same rollout, and no call of the model twice."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from resources_servers.blackjack import app as blackjack
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent
from responses_api_agents.simple_agent.app import SimpleAgent

from tests.nemo_gym.agents_at_work import World, said, stop_after, world
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.attach import checkpointed

COUNTER: list[Any] = [
    [{"name": "increment_counter", "args": {"count": 4}}, {"name": "get_counter_value", "args": {}}],
    [{"name": "increment_counter", "args": {"count": 3}}],
    [{"name": "increment_counter", "args": {"count": 4}}, {"name": "get_counter_value", "args": {}}],
    "done",
]
COUNTER_ROW = {
    "_ng_rollout_id": "r-1",
    "responses_create_params": said(COUNTER),
    "initial_count": 5,
    "expected_count": 16,
}
COUNTER_ANSWERS = 11  # seed, four of the model, five tools, verification
HANDS = ["<action>hit</action>", "<action>hit</action>", "<action>stand</action>"]
HANDS_ANSWERS = 7  # reset, and three times the model and a step
HANDS_ROW = {"_ng_rollout_id": "b-1", "responses_create_params": said(HANDS), "verifier_metadata": {}}


async def interrupted(here: World, agent: Any, row: dict[str, Any], k: int) -> Any:
    reached = asyncio.Event()
    around, end = await here.agent(agent, prepare=stop_after(k, reached))
    first = asyncio.create_task(here.run(row))
    await asyncio.wait({first, asyncio.create_task(reached.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert reached.is_set()
    await around.close()
    await end()
    await asyncio.gather(first, return_exceptions=True)
    return await here.agent(agent)


@pytest.mark.parametrize("k", range(1, COUNTER_ANSWERS + 1))
def test_simple_agent_is_interrupted_after_k_answers(tmp_path: Path, k: int) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as here:
            await here.start(StatefulCounterResourcesServer)
            end = await here.plain_agent(SimpleAgent)
            undisturbed = await (await here.run(COUNTER_ROW)).json()
            calls = here.calls
            await end()
            assert undisturbed["reward"] == 1.0

            around, end = await interrupted(here, SimpleAgent, COUNTER_ROW, k)
            response = await here.run(COUNTER_ROW)
            result = await response.json()
            assert result == undisturbed
            assert here.calls == 2 * calls
            assert len(here.resources.session_id_to_counter) == 2
            assert set(here.resources.session_id_to_counter.values()) == {16}
            assert not around.outgoing.unused
            await end()

            shutil.rmtree(tmp_path / "journal")  # without the log everything is done again
            _, end = await here.agent(SimpleAgent)
            await here.run(COUNTER_ROW)
            assert here.calls == 3 * calls
            await end()

    asyncio.run(scenario())


@pytest.mark.parametrize("k", range(1, HANDS_ANSWERS + 1))
def test_gymnasium_agent_is_interrupted_after_k_answers(
    tmp_path: Path, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackjack, "random", SimpleNamespace(Random=lambda: random.Random(39)))

    async def scenario() -> None:
        async with world(tmp_path) as here:
            await here.start(blackjack.BlackjackEnv)
            end = await here.plain_agent(GymnasiumAgent)
            undisturbed = await (await here.run(HANDS_ROW)).json()
            calls = here.calls
            await end()
            assert calls == 3
            around, end = await interrupted(here, GymnasiumAgent, HANDS_ROW, k)
            assert await (await here.run(HANDS_ROW)).json() == undisturbed
            assert here.calls == 2 * calls
            assert not around.outgoing.unused
            await end()

    asyncio.run(scenario())


@pytest.mark.parametrize("k", [1, 4, 8, 10])
def test_agent_and_environment_stop_together_and_go_on(
    tmp_path: Path, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(words.DIRECTORY, str(tmp_path))
    resources = checkpointed(StatefulCounterResourcesServer)

    async def scenario() -> None:
        async with world(tmp_path) as here:
            end_resources = await here.start(resources)
            end = await here.plain_agent(SimpleAgent)
            undisturbed = await (await here.run(COUNTER_ROW)).json()
            calls = here.calls
            await end()

            reached = asyncio.Event()
            around, end = await here.agent(SimpleAgent, prepare=stop_after(k, reached))
            first = asyncio.create_task(here.run(COUNTER_ROW))
            await reached.wait()
            await around.close()
            await end()
            await asyncio.gather(first, return_exceptions=True)
            before = dict(here.resources.session_id_to_counter)
            await end_resources()
            await here.start_resources(resources)
            around, end = await here.agent(SimpleAgent)
            assert await (await here.run(COUNTER_ROW, **{words.ATTEMPT: "1"})).json() == undisturbed
            assert here.calls == 2 * calls
            assert set(here.resources.session_id_to_counter) == set(before)
            assert set(here.resources.session_id_to_counter.values()) == {16}
            assert (around.outgoing.replayed > 0) and not around.outgoing.unused
            await end()

    asyncio.run(scenario())

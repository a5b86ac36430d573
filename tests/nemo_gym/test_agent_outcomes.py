"""Real agents in front of servers that refuse, die or lose their memory: they wait, or fail; they make no reward of it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import build
from nemo_gym.server_utils import ServerClient, raise_for_status
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer
from responses_api_agents.simple_agent.app import SimpleAgent
from scripted_model import ScriptedModel

from tests.nemo_gym.agents_at_work import REFERENCES, said, until, world
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.answered import AnsweredResponse
from unbroken.adapters.nemo_gym.attach import checkpointed
from unbroken.errors import ConfigError

SCRIPT: list[Any] = [
    [{"name": "increment_counter", "args": {"count": 2}}],
    [{"name": "no_such_tool", "args": {}}],
    [{"name": "increment_counter", "args": {"count": "many"}}, {"name": "get_counter_value", "args": {}}],
    "done",
]
ROW = {
    "_ng_rollout_id": "r-1",
    "responses_create_params": said(SCRIPT),
    "initial_count": 3,
    "expected_count": 5,
}


def test_an_agent_waits_for_a_server_that_is_down_unless_a_later_attempt_takes_over(tmp_path: Path) -> None:
    """The tools' refusals (404, 422) are what the model is told, with the journal and without."""

    async def scenario() -> None:
        async with world(tmp_path) as here:
            hold = tmp_path / "hold"
            hold.mkdir()
            end_resources = await here.start(StatefulCounterResourcesServer, hold=str(hold))
            end = await here.plain_agent(SimpleAgent)
            undisturbed = await (await here.run(ROW)).json()
            outputs = [item["output"] for item in undisturbed["response"]["output"] if "output" in item]
            assert "Not Found" in outputs[1]
            assert "count" in outputs[2]
            calls = here.calls
            await end()

            (hold / "1").touch()
            around, end = await here.agent(SimpleAgent)
            first = asyncio.create_task(here.run(ROW))
            await until(lambda: here.calls == calls + 2)
            await end_resources()
            plug = here.unplug("res")
            (hold / "1").unlink()
            await until(lambda: any(call.path == "/no_such_tool" for call in around.gate.in_flight()))
            second = asyncio.create_task(here.run(ROW, **{words.ATTEMPT: "1"}))
            superseded = await first
            assert superseded.status == 409
            assert superseded.headers[words.REFUSED] == "stale attempt"
            plug()
            await here.serve("res", here.application(here.resources))  # it comes back with all that it had
            result = await second
            assert await result.json() == undisturbed
            assert here.calls == 2 * calls
            await end()

    asyncio.run(scenario())


def test_a_server_that_stays_away_holds_up_no_save_and_is_told_of_in_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """NeMo Gym's client tries for ever by itself, inside of one call: it is stopped at its second try."""

    async def scenario() -> None:
        async with world(tmp_path) as here:
            hold = tmp_path / "hold"
            hold.mkdir()
            end_resources = await here.start(StatefulCounterResourcesServer, hold=str(hold))
            end = await here.plain_agent(SimpleAgent)
            undisturbed = await (await here.run(ROW)).json()
            calls = here.calls
            await end()

            (hold / "1").touch()
            around, end = await here.agent(SimpleAgent)
            first = asyncio.create_task(here.run(ROW))
            await until(lambda: here.calls == calls + 2)
            await end_resources()
            plug = here.unplug("res")
            (hold / "1").unlink()
            await until(lambda: "res" in around.outgoing._away)
            await around.gate.drain(60)  # as for a save
            assert not around.gate.in_flight()
            assert not first.done()
            around.outgoing.patience = 0.01
            around.gate.open()
            refused = await first
            assert (refused.status, refused.headers[words.REFUSED]) == (503, "closed")
            assert "res/no_such_tool could not be reached" in (await refused.json())["error"]

            plug()
            await here.serve("res", here.application(here.resources))  # it comes back with all that it had
            result = await here.run(ROW)
            assert await result.json() == undisturbed
            assert here.calls == 2 * calls
            await end()

    asyncio.run(scenario())
    assert capfd.readouterr().err.count("cannot be reached") == 1


def test_a_server_that_has_lost_its_memory_makes_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(words.DIRECTORY, str(tmp_path))

    async def scenario() -> None:
        async with world(tmp_path) as here:
            hold = tmp_path / "hold"
            hold.mkdir()
            resources = checkpointed(StatefulCounterResourcesServer)
            end_resources = await here.start(resources, hold=str(hold))
            (hold / "1").touch()
            _, end = await here.agent(SimpleAgent)
            first = asyncio.create_task(here.run(ROW))
            await until(lambda: here.calls == 2)
            await end_resources()
            shutil.rmtree(tmp_path / "res")
            await here.start_resources(resources)
            (hold / "1").unlink()
            failed = await first
            assert failed.status == 503
            assert failed.headers[words.REFUSED] == "unknown session"
            said = await failed.json()
            assert "reward" not in said
            assert "begins afresh" in said["error"]
            fresh = await here.run(ROW, **{words.ATTEMPT: "1"})
            assert (await fresh.json())["reward"] == 1.0
            assert set(here.resources.session_id_to_counter.values()) == {5}
            await end()

    asyncio.run(scenario())


def test_a_row_that_the_environment_does_not_take_is_answered_as_by_the_agent_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as here:
            await here.start(StatefulCounterResourcesServer)
            bad = {key: value for key, value in ROW.items() if key != "initial_count"}
            end = await here.plain_agent(SimpleAgent)
            assert (await here.run(bad)).status == 500
            await end()
            _, end = await here.agent(SimpleAgent)
            refused = await here.run(bad)
            assert (refused.status, refused.headers[words.REFUSED]) == (500, "other")
            assert "initial_count" in await refused.text()
            assert here.calls == 0
            await end()

    asyncio.run(scenario())


def test_wrapped_servers_serve_under_their_own_names_and_say_their_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(words.DIRECTORY, str(tmp_path))

    async def scenario() -> None:
        async with world(tmp_path) as here:
            await here.start(checkpointed(StatefulCounterResourcesServer), model=checkpointed(ScriptedModel))
            server, app = build(
                checkpointed(SimpleAgent), "agent", servers=here.global_config(), **REFERENCES
            )
            assert isinstance(server, SimpleAgent)
            assert isinstance(server.server_client, ServerClient)
            assert server.get_session_middleware_key() == "SimpleAgent___agent"
            assert type(server).model_fields["config"].annotation.__name__ == "SimpleAgentConfig"
            server.setup_exception_middleware(app)
            end = await here.serve("agent", app)
            first = await here.run({**ROW, words.POLICY_KEY: 3})
            assert (await first.json())["reward"] == 1.0
            assert first.headers[words.POLICY] == "3"
            again = await here.run(ROW)
            assert again.headers[words.REPLAYED] == "1"
            assert await again.json() == await first.json()
            assert here.calls == 4
            await end()

    asyncio.run(scenario())


def test_an_agent_with_several_workers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(words.DIRECTORY, str(tmp_path))
    with pytest.raises(ConfigError, match="num_workers: 1"):
        build(checkpointed(SimpleAgent), "agent", num_workers=2, **REFERENCES)


def test_nemo_gym_raises_for_an_answer_from_the_log_as_for_one_of_aiohttp() -> None:
    from aiohttp import ClientResponseError

    async def scenario() -> Any:
        with pytest.raises(ClientResponseError) as raised:
            await raise_for_status(AnsweredResponse(status=422, body=b"no", url="http://res/x"))
        return raised.value

    error = asyncio.run(scenario())
    assert error.status == 422
    assert error.response_content == b"no"

"""NeMo Gym's own resources servers come back as they were, and what they would be otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.serving import Served, serving
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Drop, Export, Quiesce, Receive, Settle, Surrender
from unbroken.errors import ConfigError


def response(text: str) -> dict[str, Any]:
    """What a model has said, as servers want it."""
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [content]}
    return {
        "id": "r", "created_at": 0, "model": "m", "object": "response", "output": [message], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def asked() -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": "?"}]}}


def test_counter(tmp_path: Path) -> None:
    from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer

    verify = {**asked(), "response": response("5"), "expected_count": 5}
    for directory, count, reward in ((tmp_path, 5, 1.0), (None, 0, 0.0)):
        with serving(StatefulCounterResourcesServer, directory) as server:
            cookie = server.seeded(body={"initial_count": 3}, rollout="r", call="1")
            server.post("/increment_counter", {"count": 2}, cookie=cookie, rollout="r", call="2")
        with serving(StatefulCounterResourcesServer, directory) as server:
            again = server.post("/increment_counter", {"count": 2}, cookie=cookie, rollout="r", call="2")
            if directory is not None:
                assert again.headers[words.REPLAYED] == "1"
                assert again.json() == {"success": True}
                assert server.post("/get_counter_value", cookie=cookie).json() == {"count": count}
                assert server.post("/verify", verify, cookie=cookie).json()["reward"] == reward
            else:
                assert server.post("/get_counter_value", cookie=cookie).json() == {"count": 2}, "not 5"


def test_blackjack_deals_the_same_hand(tmp_path: Path) -> None:
    from resources_servers.blackjack.app import BlackjackEnv

    def hit(server: Served, cookie: str) -> Any:
        body = {**asked(), "response": response("<action>hit</action>")}
        return server.post("/step", body, cookie=cookie).json()

    with serving(BlackjackEnv, tmp_path) as server:
        cookies = [server.seeded("/reset", asked(), rollout=f"r{number}", call="1") for number in range(8)]
        states = {
            sid: (s["player"], s["dealer"], s["rng"].getstate())
            for sid, s in server.server.session_state.items()
        }
        first = [server.post("/reset", asked(), rollout=f"r{number}", call="1").json() for number in range(8)]
    with serving(BlackjackEnv, tmp_path) as server:
        again = [server.post("/reset", asked(), rollout=f"r{number}", call="1") for number in range(8)]
        assert [answer.json() for answer in again] == first
        assert all(answer.headers[words.REPLAYED] for answer in again)
        now = {
            sid: (s["player"], s["dealer"], s["rng"].getstate())
            for sid, s in server.server.session_state.items()
        }
        assert now == states
        hits = [hit(server, cookie) for cookie in cookies]
        digests = server.digests()
    with serving(BlackjackEnv, tmp_path) as server:
        assert server.recovered()
        assert {recovered.tier for recovered in server.recovered().values()} == {"newest"}, (
            "hits draw the same cards"
        )
        assert server.digests() == digests
        assert len(hits) == 8
    with serving(BlackjackEnv, tmp_path / "none") as server:
        assert [
            server.post("/reset", asked(), rollout=f"r{number}", call="1").json() for number in range(8)
        ] != first


def _mcp(
    server: Served, token: str, method: str, params: dict[str, Any], number: int = 1, **headers: str
) -> Any:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    given = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18", **headers}
    if token:
        given["x-nemo-gym-session-token"] = token
    return server.post("/mcp", message, **given)


def test_weather_over_mcp(tmp_path: Path) -> None:
    from resources_servers.example_mcp_weather.app import ExampleMCPWeatherResourcesServer

    hello = {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
    }  # fmt: skip
    verify = {**asked(), "response": response("The weather in Paris is sunny and 72 F.")}
    with serving(ExampleMCPWeatherResourcesServer, tmp_path) as server:
        seeded = server.post(
            "/seed_session", {"verifier_metadata": {"expected_city": "Paris"}}, rollout="r", call="1"
        )
        token = seeded.json()["mcp"]["headers"]["X-NeMo-Gym-Session-Token"]
        cookie = "; ".join(f"{name}={value}" for name, value in seeded.cookies.items())
        assert _mcp(server, "", "initialize", hello).json()["result"]["serverInfo"]
        tools = _mcp(server, "", "tools/list", {}).json()["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["get_weather"]
        got = _mcp(
            server,
            token,
            "tools/call",
            {"name": "get_weather", "arguments": {"city": "Paris"}},
            rollout="r",
            call="2",
        )
        assert "sunny" in got.text
        (session,) = server.told("sessions").sessions
        assert session.revision == 2, "handshakes are no calls of a session"
        digests = server.digests()
        assert "get_weather" in {tool.name for tool in server.told("status").tools}
    with serving(ExampleMCPWeatherResourcesServer, tmp_path) as server:
        assert [(r.tier, r.redone) for r in server.recovered().values()] == [("newest", 1)]
        assert server.digests() == digests
        again = _mcp(
            server,
            token,
            "tools/call",
            {"name": "get_weather", "arguments": {"city": "Paris"}},
            rollout="r",
            call="2",
        )
        assert (again.content, again.headers[words.REPLAYED]) == (got.content, "1")
        (state,) = server.server.session_id_to_state.values()
        assert len(state["weather_calls"]) == 1
        assert server.post("/verify", verify, cookie=cookie).json()["reward"] == 1.0
    with serving(ExampleMCPWeatherResourcesServer, None) as server:
        assert server.post("/verify", verify, cookie=cookie).json()["reward"] == 0.0


def test_code_cells_are_executed_again(tmp_path: Path) -> None:
    from resources_servers.math_with_code.app import PythonExecutorResourcesServer

    def execute(server: Served, code: str, cookie: str) -> Any:
        return server.post("/execute_python", {"code": code}, cookie=cookie).json()

    def clean(server: Served, cookies: list[str]) -> None:
        for cookie in cookies:
            server.post("/end_session", cookie=cookie)

    with serving(PythonExecutorResourcesServer, tmp_path) as server:
        assert server.told("status").capability == "replay"
        cookie = server.seeded(rollout="r", call="1")
        assert execute(server, "x = 20", cookie)["success"]
        assert execute(server, "y = x + 1\nprint(y)", cookie)["stdout"] == "21\n"
        handles = [dict(server.server._sessions)]
    with serving(PythonExecutorResourcesServer, tmp_path) as server:
        (back,) = server.recovered().values()
        assert (back.tier, back.redone) == ("replayed", 3)
        assert execute(server, "print(x + y)", cookie)["stdout"] == "41\n"
        clean(server, [cookie])
    for handle in handles[0].values():
        handle.close()
    with serving(PythonExecutorResourcesServer, None) as server:
        lost = execute(server, "print(x + y)", cookie)
        assert "41" not in lost["stdout"]
        for handle in server.server._sessions.values():
            handle.close()


def test_the_catch_all_of_workplace_assistant_gets_what_is_its(tmp_path: Path) -> None:
    from resources_servers.workplace_assistant.app import WorkbenchResourcesServer

    with serving(WorkbenchResourcesServer, tmp_path) as server:
        cookie = server.seeded(rollout="r", call="1")
        tool = server.post("/.unbroken", {"x": 1}, cookie=cookie)
        assert "Error executing tool '.unbroken'" in tool.json()["output"]
        below = server.post("/.unbroken/status", cookie=cookie)
        assert below.status_code == 404, "no route, and no control without the token"
        assert (
            server.post("/company_directory_find_email_address", {"name": "sam"}, cookie=cookie).status_code
            == 200
        )
        digests = server.digests()
    with serving(WorkbenchResourcesServer, tmp_path) as server:
        assert server.recovered()
        assert server.digests() == digests
    with serving(WorkbenchResourcesServer, None) as server:
        poisoned = server.post("/company_directory_find_email_address", {"name": "sam"}, cookie=cookie)
        assert poisoned.status_code == 400


def test_two_workers_are_refused(tmp_path: Path) -> None:
    from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer

    with (
        pytest.raises(ConfigError, match="num_workers=2"),
        serving(StatefulCounterResourcesServer, tmp_path, config={"num_workers": 2}),
    ):
        pass


def test_a_session_moves_between_two_instances(tmp_path: Path) -> None:
    from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer as Counter

    with (
        serving(Counter, tmp_path / "a", name="a") as source,
        serving(Counter, tmp_path / "b", name="b") as target,
    ):
        source.adopt()
        target.adopt()
        cookie = source.seeded(body={"initial_count": 3}, rollout="r", call="1")
        (session,) = source.server.session_id_to_counter
        record = source.told("surrender", Surrender(session=session, to="http://127.0.0.1:2"))
        target.told("receive", Receive(record=record.data))
        source.told("settle", Settle(session=session, moved=True))
        assert source.server.session_id_to_counter == {}
        source.client.follow_redirects = False
        moved = source.post("/get_counter_value", cookie=cookie)
        assert (moved.status_code, moved.headers[words.MOVED]) == (307, "http://127.0.0.1:2")
        answer = target.post("/get_counter_value", cookie=cookie)
        assert answer.json() == {"count": 3}
        theirs = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
        assert target.post("/get_counter_value", cookie=theirs).json() == {"count": 3}
        # An agent that has only the new cookie, and asks at the old address, is sent on all the same.
        assert source.post("/get_counter_value", cookie=theirs).status_code == 307


def test_a_cut_and_a_drop(tmp_path: Path) -> None:
    from resources_servers.workplace_assistant.app import WorkbenchResourcesServer

    with serving(WorkbenchResourcesServer, tmp_path) as server:
        server.adopt()
        for number in range(3):
            server.seeded(rollout=f"r{number}", call="1")
        server.told("quiesce", Quiesce(timeout=300))
        exported = server.told("export", Export())
        server.told("release")
        assert len(exported.records) == 3
        server.told("drop", Drop(rollouts=["r0", "r2"]))
        assert len(server.server.session_id_to_tool_env) == 1

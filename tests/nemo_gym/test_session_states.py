"""Sessions of NeMo Gym's own servers: what one server holds of them, another goes on from as if nothing had been.

For each server two sessions are used over HTTP and captured. A second server of the same class gets them and answers the next
calls; so does the first, which is the oracle; a third that gets nothing answers otherwise.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process import build
from starlette.testclient import TestClient

from unbroken.adapters.nemo_gym.sessions.registry import config_hash, tools_of
from unbroken.adapters.nemo_gym.sessions.states import SessionStates

KEY = b"k" * 32
ROW: dict[str, Any] = {"responses_create_params": {"input": []}}
BOARD = {**ROW, "seed": 3}


def spoken(text: str) -> dict[str, Any]:
    """What a model answered, as servers get it."""
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [content]}
    return {
        "id": "r", "created_at": 0, "model": "m", "object": "response", "output": [message],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def step(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/step", {**ROW, **more, "response": spoken(text)}


@dataclass(frozen=True)
class Case:
    """A server, the calls that each of two sessions begins with, and those whose answers depend on them."""

    module: str
    cls: str
    first: tuple[tuple[str, dict[str, Any]], ...]
    second: tuple[tuple[str, dict[str, Any]], ...]
    next: tuple[tuple[str, dict[str, Any]], ...]
    form: str
    maps: frozenset[str]


PATIENT = {
    "environment": {
        "patients": {"P1": {"name": "Ann", "chart_notes": ""}},
        "appointments": {},
        "messages": [],
    }
}
FOLLOW = {"follow_ups": ["one", "two", "three"], "expected_answer": "end"}
MAIL = {"recipient": "a@b.com", "subject": "Zebra", "body": "striped"}

CASES = [
    Case(
        "example_session_state_mgmt", "StatefulCounterResourcesServer",
        (("/seed_session", {"initial_count": 3}), ("/increment_counter", {"count": 2})),
        (("/seed_session", {"initial_count": 40}),),
        (("/get_counter_value", {}), ("/increment_counter", {"count": 1}), ("/get_counter_value", {})),
        "json", frozenset({"session_id_to_counter"}),
    ),
    Case(
        "workplace_assistant", "WorkbenchResourcesServer",
        (
            ("/seed_session", {}), ("/email_send_email", MAIL),
            (
                "/customer_relationship_manager_add_customer",
                {"customer_name": "Zed", "assigned_to_email": "a@b.com", "status": "Lead"},
            ),
        ),
        (("/seed_session", {}),),
        (
            ("/email_search_emails", {"query": "Zebra"}), ("/email_send_email", MAIL), ("/email_search_emails", {"query": "Zebra"}),
            ("/customer_relationship_manager_search_customers", {"customer_name": "Zed"}),
        ),
        "pickle", frozenset({"session_id_to_tool_env"}),
    ),
    Case(
        "blackjack", "BlackjackEnv",
        (("/reset", ROW),), (("/reset", ROW),),
        (step("<action>hit</action>"),),
        "pickle", frozenset({"session_state"}),
    ),
    Case(
        "example_multi_turn_gymnasium", "ExampleMultiTurnEnv",
        (("/reset", {**ROW, **FOLLOW}), step("a", **FOLLOW)),
        (("/reset", {**ROW, **FOLLOW}), step("a", **FOLLOW), step("b", **FOLLOW)),
        (step("c", **FOLLOW),),
        "json", frozenset({"session_turns"}),
    ),
    Case(
        "grl_tetris", "GrlTetrisResourcesServer",
        (("/reset", BOARD), step("<action>Left</action>")),
        (("/reset", {**ROW, "seed": 11}),),
        (step("<action>Down</action>"), step("<action>Down</action><action>Right</action>"), step("<action>Down</action>")),
        "pickle", frozenset({"session_id_to_state"}),
    ),
    Case(
        "grl_sokoban", "GrlSokobanResourcesServer",
        (("/reset", BOARD), step("<action>Up</action>")),
        (("/reset", {**ROW, "seed": 11}),),
        (step("<action>Left</action>"), step("<action>Up</action>"), step("<action>Right</action>")),
        "pickle", frozenset({"session_id_to_state"}),
    ),
    Case(
        "indirect_prompt_injection", "IPIResourcesServer",
        (("/seed_session", PATIENT), ("/update_patient_chart", {"patient_id": "P1", "notes": "fever"})),
        (("/seed_session", PATIENT),),
        (
            ("/get_patient_record", {"patient_id": "P1"}), ("/update_patient_chart", {"patient_id": "P1", "notes": "more"}),
            ("/get_patient_record", {"patient_id": "P1"}),
        ),
        "json", frozenset({"session_id_to_env"}),
    ),
]  # fmt: skip


class Users:
    """Two users of a server, each with a session of their own. Of one lost with the server, the cookie is what stays."""

    def __init__(self, client: TestClient, cookies: list[dict[str, str]]) -> None:
        self.client = client
        self.cookies = cookies

    def ask(self, number: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.client.cookies.clear()
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies[number].items())
        answer = self.client.post(path, json=body, headers={"cookie": cookie} if cookie else {})
        self.cookies[number] = dict(answer.cookies)
        return answer.status_code, answer.json() if answer.status_code == 200 else answer.text

    def sessions(self) -> list[str]:
        return [session_of(cookies) for cookies in self.cookies]


def session_of(cookies: dict[str, str]) -> str:
    (cookie,) = cookies.values()
    return str(json.loads(base64.b64decode(cookie.strip('"').split(".")[0]))["session_id"])


def class_of(module: str, name: str) -> Any:
    return getattr(pytest.importorskip(f"resources_servers.{module}.app"), name)


@pytest.fixture
def open_client() -> Iterator[Callable[[Any], TestClient]]:
    clients: list[TestClient] = []

    def start(app: Any) -> TestClient:
        client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        clients.append(client)
        return client.__enter__()

    yield start
    for client in reversed(clients):
        client.__exit__(None, None, None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.module)
def test_another_server_goes_on_with_the_sessions(
    case: Case, open_client: Callable[[Any], TestClient]
) -> None:
    cls = class_of(case.module, case.cls)
    server, app = build(cls)
    states = SessionStates(server, key=KEY)
    users = Users(open_client(app), [{}, {}])
    for number, calls in enumerate((case.first, case.second)):
        for path, body in calls:
            assert users.ask(number, path, body)[0] == 200
    sessions = users.sessions()
    captured = {session: states.capture(session) for session in sessions}
    digests = [states.digest(session) for session in sessions]
    assert digests[0] != digests[1]
    for session in sessions:
        encoded = captured[session]
        assert encoded is not None, states.reason(session)
        assert (encoded.form, encoded.digest) == (case.form, digests[sessions.index(session)])
        assert json.loads(json.dumps(states.context(session))).keys() == case.maps
    assert states.capability == "snapshot"
    assert states.shared() is None

    server2, app2 = build(cls)
    states2 = SessionStates(server2, key=KEY)
    held = getattr(server2, next(iter(case.maps)))
    for session, encoded in captured.items():
        assert encoded is not None
        states2.install(session, states2.decode(encoded))
    assert getattr(server2, next(iter(case.maps))) is held
    assert [states2.digest(session) for session in sessions] == digests

    def asked(users: Users) -> list[tuple[int, Any]]:
        return [users.ask(number, path, body) for number in (0, 1) for path, body in case.next]

    restored = Users(open_client(app2), [dict(cookies) for cookies in users.cookies])
    empty = Users(open_client(build(cls)[1]), [dict(cookies) for cookies in users.cookies])
    answers = asked(users)
    assert asked(restored) == answers
    assert asked(empty) != answers
    assert restored.sessions() == sessions
    after = [states.digest(session) for session in sessions]
    assert [states2.digest(session) for session in sessions] == after
    assert case.module == "blackjack" or after != digests  # a hand that is over is gone

    for session in sessions:
        states2.remove(session)
    assert [states2.digest(session) for session in sessions] == ["", ""]
    assert not held


def test_tools_of_a_restored_session_work_on_its_own_tables(
    open_client: Callable[[Any], TestClient],
) -> None:
    cls = class_of("workplace_assistant", "WorkbenchResourcesServer")
    server, app = build(cls)
    users = Users(open_client(app), [{}])
    users.ask(0, "/seed_session", {})
    (session,) = users.sessions()
    states = SessionStates(server, key=KEY)
    encoded = states.capture(session)
    assert encoded is not None
    server2, _ = build(cls)
    states2 = SessionStates(server2, key=KEY)
    states2.install(session, states2.decode(encoded))
    for environment in (server.session_id_to_tool_env[session], server2.session_id_to_tool_env[session]):
        owners = {id(function.__self__) for function in environment["functions"].values()}
        assert owners == {id(container) for container in environment["containers"].values()}
    assert (
        server2.session_id_to_tool_env[session]["containers"]["email"]
        is not server.session_id_to_tool_env[session]["containers"]["email"]
    )


def test_sessions_of_tools_over_mcp(open_client: Callable[[Any], TestClient]) -> None:
    cls = class_of("example_mcp_weather", "ExampleMCPWeatherResourcesServer")
    server, app = build(cls)
    client = open_client(app)
    seeded = client.post("/seed_session", json={"verifier_metadata": {"expected_city": "Oslo"}})
    headers = {
        **seeded.json()["mcp"]["headers"],
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    call = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "get_weather", "arguments": {"city": "Oslo"}},
    }  # fmt: skip
    assert client.post("/mcp", json=call, headers=headers).status_code == 200
    session = session_of(dict(client.cookies))
    states = SessionStates(server, key=KEY)
    encoded = states.capture(session)
    assert encoded is not None
    assert encoded.form == "json"

    server2, app2 = build(cls)
    states2 = SessionStates(server2, key=KEY)
    states2.install(session, states2.decode(encoded))
    assert open_client(app2).post("/mcp", json=call, headers=headers).status_code == 200
    assert len(server2.session_id_to_state[session]["weather_calls"]) == 2
    assert client.post("/mcp", json=call, headers=headers).status_code == 200
    assert states2.digest(session) == states.digest(session)
    assert [tool.name for tool in tools_of(server, app) if tool.method == "MCP"] == ["get_weather"]


def test_a_server_with_a_process_for_each_session_says_so(open_client: Callable[[Any], TestClient]) -> None:
    cls = class_of("math_with_code", "PythonExecutorResourcesServer")
    server, app = build(cls)
    states = SessionStates(server, key=KEY)
    assert states.capability == "replay"
    users = Users(open_client(app), [{}])
    assert users.ask(0, "/execute_python", {"code": "x = 5\nx"})[1]["result"] == "5"
    (session,) = users.sessions()
    try:
        assert states.capture(session) is None
        assert states.reason(session).startswith("_sessions")
        assert "_SessionHandle" not in states.reason(session)
        assert "a process" in states.reason(session) or "a connection" in states.reason(session)
        assert states.digest(session)
    finally:
        users.ask(0, "/end_session", {})
    assert states.digest(session) == ""


GENRM = {
    "genrm_model_server": {"type": "responses_api_models", "name": "genrm_model"},
    "genrm_responses_create_params": {"input": []},
}


@pytest.mark.parametrize(
    ("module", "name", "settings", "capability"),
    [
        ("gpqa_diamond", "GPQADiamondResourcesServer", {}, "stateless"),
        ("genrm_compare", "GenRMCompareResourcesServer", GENRM, "drain_only"),
        ("example_single_tool_call", "SimpleWeatherResourcesServer", {}, "replay"),
    ],
)
def test_what_a_class_says_before_any_traffic(
    module: str, name: str, settings: dict[str, Any], capability: str
) -> None:
    server, _ = build(class_of(module, name), **settings)
    assert SessionStates(server, key=KEY).capability == capability


def test_moments_of_the_monotonic_clock_are_found_in_a_real_server() -> None:
    import ast

    import resources_servers

    from unbroken.adapters.nemo_gym.sessions.clocks import names_in

    source = Path(next(iter(resources_servers.__path__)), "finance_sec_search", "app.py").read_text()
    assert {"_session_start_times", "requests"} <= names_in(ast.parse(source))


def test_time_that_a_session_has_left_is_kept(
    open_client: Callable[[Any], TestClient], tmp_path: Path
) -> None:
    cls = class_of("finance_sec_search", "FinanceAgentResourcesServer")
    tickers = {"0": {"cik_str": 1, "ticker": "A", "title": "A Inc."}}
    (tmp_path / "tickers.json").write_text(json.dumps(tickers))
    settings: dict[str, Any] = {
        "cache_dir": str(tmp_path), "judge_prompt_template": "j", "retrieval_system_prompt": "r", "user_agent": "a b@c.de",
        "judge_model_server": None, "retrieval_model_server": None, "judge_responses_create_params": None,
    }  # fmt: skip
    server, app = build(cls, **settings)
    server2, _ = build(cls, **settings)
    states = SessionStates(server, key=KEY)
    users = Users(open_client(app), [{}])
    assert users.ask(0, "/seed_session", {})[0] == 200
    (session,) = users.sessions()
    server._data_storage[session]["page"] = "text"
    encoded = states.capture(session)
    assert encoded is not None
    states2 = SessionStates(server2, key=KEY)
    decoded = states2.decode(msgspec.structs.replace(encoded, clock=encoded.clock - 1000.0))
    states2.install(session, decoded)
    assert decoded.age >= 1000.0
    assert server2._session_start_times[session] == server._session_start_times[session] + decoded.age
    assert server2._data_storage[session] == {"page": "text"}
    assert states2.digest(session) == states.digest(session)
    assert states.capability == "snapshot"
    assert states.exclusions == (), "nobody holds _session_lock"


def test_fingerprints_of_tools_and_settings() -> None:
    cls = class_of("example_session_state_mgmt", "StatefulCounterResourcesServer")
    server, app = build(cls)
    again, app2 = build(cls, port=4711)
    other, _ = build(cls, name="another")
    assert tools_of(server, app) == tools_of(again, app2)
    assert {tool.path for tool in tools_of(server, app)} >= {"/seed_session", "/verify", "/increment_counter"}
    assert config_hash(server) == config_hash(again) != config_hash(other)
    app2.post("/another_tool")(server.get_counter_value)
    assert tools_of(server, app) != tools_of(again, app2)


def test_the_same_in_another_process() -> None:
    import subprocess
    import sys

    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from in_process import build\n"
        "from unbroken.adapters.nemo_gym.sessions.registry import config_hash, tools_of\n"
        "from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer as S\n"
        "server, app = build(S)\n"
        "print(config_hash(server), *(tool.schema for tool in tools_of(server, app)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, __file__.rpartition("/")[0]],
        capture_output=True,
        text=True,
        check=True,
    )
    server, app = build(class_of("example_session_state_mgmt", "StatefulCounterResourcesServer"))
    expected = [config_hash(server), *(tool.schema for tool in tools_of(server, app))]
    assert found.stdout.split() == [word for word in expected if word]

"""What nobody should send, to a server behind a real port: each is refused in one sentence, and changes nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from itsdangerous import TimestampSigner

from tests.nemo_gym.episodes import WORKPLACE
from tests.nemo_gym.kills import Rig
from tests.nemo_gym.stack import Stack, counter
from unbroken.adapters.nemo_gym import control, keys, words
from unbroken.adapters.nemo_gym.log import Log

COUNTER_KEY = "StatefulCounterResourcesServer___res"
"""Name of the cookie, and its secret: NeMo Gym has no other."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    with Stack(tmp_path_factory.mktemp("counter")) as made:
        yield made


def seeded(stack: Stack, rollout: str = "", **headers: str) -> dict[str, str]:
    """Begin a session; return the headers by which its rollout speaks of it."""
    named = {words.ROLLOUT: rollout, **headers} if rollout else {}
    answer = stack.post("res", "/seed_session", {"initial_count": 3}, headers=named)
    assert answer.status_code == 200
    cookie = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
    return {**named, "cookie": cookie}


def cookie_of(session: str, secret: str = COUNTER_KEY) -> str:
    data = base64.b64encode(json.dumps({"session_id": session}).encode())
    return f"{COUNTER_KEY}={TimestampSigner(secret).sign(data).decode()}"


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Return status and kind of a refusal. It says what to do next, and is no answer of a tool."""
    body = answer.json()
    assert answer.headers[words.REFUSED] == body["kind"]
    assert body["error"].count(". ") >= 1 and body["error"].endswith(".")
    return answer.status_code, body["kind"]


def unchanged(stack: Stack, before: dict[str, str]) -> bool:
    return stack.digests() == before


def test_a_stale_attempt_writes_nothing(stack: Stack) -> None:
    mine = seeded(stack, "stale", **{words.ATTEMPT: "1"})
    before = stack.digests()
    late = {**mine, words.ATTEMPT: "0", words.CALL: "late"}
    assert refused(stack.post("res", "/increment_counter", {"count": 1}, headers=late)) == (
        409,
        "stale attempt",
    )
    other = {**mine, words.ROLLOUT: "another"}
    assert refused(stack.post("res", "/increment_counter", {"count": 1}, headers=other)) == (
        409,
        "unknown session",
    )
    assert unchanged(stack, before)
    answer = stack.post("res", "/get_counter_value", headers=mine)
    assert answer.json() == {"count": 3}


def test_a_stale_rollout_is_refused_by_the_agent(stack: Stack) -> None:
    row = {**counter(1), "_ng_rollout_id": "attempts"}
    assert stack.run({**row, "_ng_attempt_index": 2})["reward"] == 1.0
    calls, before = len(stack.model_calls()), stack.digests()
    answer = stack.post("agent", "/run", {**row, "_ng_attempt_index": 1})
    assert refused(answer) == (409, "stale attempt")
    assert "reward" not in answer.json()
    answer = stack.post("agent", "/run", {**row, "_ng_attempt_index": -1})
    assert refused(answer) == (400, "format")
    assert (len(stack.model_calls()), stack.digests()) == (calls, before)


@pytest.mark.parametrize(
    ("cookie", "expected"),
    [
        (cookie_of("made up"), (409, "unknown session")),
        (cookie_of("made up", "another secret"), (401, "bad cookie")),
        (f"{COUNTER_KEY}=nonsense", (401, "bad cookie")),
        ("", (409, "unknown session")),
    ],
    ids=["never seeded here", "another secret", "nonsense", "none"],
)  # fmt: skip
def test_a_session_that_is_none_of_this_server(stack: Stack, cookie: str, expected: tuple[int, str]) -> None:
    before = stack.digests()
    headers = {"cookie": cookie} if cookie else {}
    assert refused(stack.post("res", "/increment_counter", {"count": 1}, headers=headers)) == expected
    assert unchanged(stack, before)


@pytest.mark.parametrize("server", ["res", "agent", "policy_model"])
@pytest.mark.parametrize("token", ["wrong", "", "Bearer"])
def test_nobody_controls_a_server_without_the_token(stack: Stack, server: str, token: str) -> None:
    before = stack.digests()
    epoch = stack.status(server).epoch
    headers = {words.CONTROL: token} if token else {}
    url = stack.addresses[server] + words.PREFIX
    for operation in ("adopt", "status", "drop"):
        answer = httpx.post(url + operation, content=b"", headers=headers)
        if token:
            refusal = msgspec.msgpack.decode(answer.content, type=control.Refusal)
            assert (answer.status_code, refusal.kind) == (403, "token")
            assert "UNBROKEN_KEY" in refusal.error
        else:
            assert answer.status_code in {404, 405, 409}, "it is a path like any other, and names no session"
    assert stack.status(server).epoch == epoch
    assert unchanged(stack, before)


def test_an_older_trainer_is_fenced(stack: Stack) -> None:
    epochs = [
        stack.control("res", "adopt", control.Epoch, control.Adopt(run=run)).epoch for run in ("one", "two")
    ]
    assert epochs[1] == epochs[0] + 1
    answer = httpx.post(
        stack.addresses["res"] + words.PREFIX + "quiesce",
        content=msgspec.msgpack.encode(control.Quiesce(timeout=1.0)),
        headers={words.CONTROL: keys.control_token(), words.EPOCH: str(epochs[0])},
    )
    assert msgspec.msgpack.decode(answer.content, type=control.Refusal).kind == "fenced"
    assert stack.status().phase == "open"


def test_a_torn_last_line_is_trimmed_and_said(tmp_path: Path) -> None:
    """A machine that lost its power in the middle of a line: of a resources server, of an agent, and of a model."""
    with Stack(tmp_path) as stack:
        stack.hold(2)
        answer = stack.run_later({**counter(1, 2, 3), "_ng_rollout_id": "torn"})
        stack.await_turn(2)
        before = stack.digests()
        stack.kill("all")
        for server in ("res", "agent", "policy_model"):
            path = stack.gym / server / "log"
            whole = path.read_bytes()
            log = Log.open(stack.gym / server, key=keys.log_key())
            log.append("torn", b"a line of which only the beginning reached the disk")
            log.close()
            longer = path.read_bytes()
            assert longer.startswith(whole)
            path.write_bytes(longer[: len(whole) + (len(longer) - len(whole)) // 2])
        stack.restart("all")
        assert unchanged(stack, before)
        for server in ("res", "agent", "policy_model"):
            notes = stack.status(server).recovery.notes
            assert any("torn last line" in note for note in notes), (server, notes)
        stack.let_go(2)
        assert answer.result(60)["reward"] == 1.0


def test_a_file_that_is_no_log_keeps_a_server_from_starting_and_stays(tmp_path: Path) -> None:
    from unbroken.errors import ServerMissing

    place = tmp_path / "gym" / "res"
    place.mkdir(parents=True)
    (place / "log").write_bytes(b"these are somebody's notes\n" * 20)
    made = Stack(tmp_path)
    with pytest.raises(ServerMissing, match="res"), made:
        pass
    assert (place / "log").read_bytes() == b"these are somebody's notes\n" * 20


def test_a_tool_named_like_a_control_path_is_a_tool(tmp_path: Path) -> None:
    """workplace_assistant takes any path of one part as the name of a tool."""
    with Stack(tmp_path, **WORKPLACE.stack) as stack:
        rig = Rig(stack, WORKPLACE)
        _, row = rig.next_row()
        script: list[Any] = [[{"name": ".unbroken", "args": {"x": 1}}], "done"]
        message = {"role": "user", "content": json.dumps({"script": script})}
        row["responses_create_params"] = {"input": [message]}
        said = [item["output"] for item in stack.run(row)["response"]["output"] if "output" in item]
        assert said == [
            json.dumps({"output": "Error executing tool '.unbroken': '.unbroken'"}, separators=(",", ":"))
        ]
        assert stack.status().phase == "open"

"""What the layered document says of a checkpoint's component, field by field."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from tests.adapters.nemo_gym.layered_examples import (
    DIGEST,
    body,
    call,
    cards,
    component,
    counter,
    finished,
    segment,
    status,
    unfinished,
)
from tests.repo.states import meta
from unbroken.adapters.nemo_gym.protocol import GymState, SessionState
from unbroken.adapters.nemo_gym.records import Encoded, SessionRecord
from unbroken.adapters.nemo_gym.view import sessions
from unbroken.adapters.nemo_gym.view.layers import layered
from unbroken.errors import CorruptObject, UnsupportedFormat
from unbroken.state.nodes import Coded, Dict
from unbroken.state.snapshot import Component


def state() -> GymState:
    return layered(component(), meta(12, reason="every 10 steps"))


def session_of(record: SessionRecord) -> SessionState:
    found = layered(component({"counter": [segment(record)]}), None)
    return found.environment.session_states[record.id]


def test_a_later_segment_stands_for_an_earlier_one_and_an_empty_record_for_gone() -> None:
    assert list(state().environment.session_states) == ["s-2", "s-1"]
    told = component({"counter": [segment(counter()), segment(counter(count=8))]})
    (session,) = layered(told, None).environment.session_states.values()
    assert session.context == {"session_id_to_counter": 8}


def test_the_environment_is_its_resources_servers() -> None:
    environment = state().environment
    assert environment.env_id == "cards+counter"
    assert environment.config_hash == "hash of cards+hash of counter"


def test_a_tool_call_with_its_result_its_status_and_its_time() -> None:
    second = state().environment.session_states["s-1"].tool_history[1]
    assert msgspec.to_builtins(second) == {
        "name": "increment_counter",
        "arguments": {"count": 2},
        "result": {"success": True},
        "status": 200,
        "succeeded": True,
        "started": "2025-12-06T05:46:41.000Z",
        "seconds": 0.25,
        "call_id": "7-0#2",
        "revision": 2,
    }


def test_a_failed_call_an_image_and_a_text() -> None:
    third = state().environment.session_states["s-1"].tool_history[2]
    assert (third.status, third.succeeded) == (404, False)
    assert third.arguments == {"picture": {"$media": DIGEST, "type": "image/png"}}
    assert third.result == "no such\nroute"


@pytest.mark.parametrize(
    ("result", "content_type", "seen"),
    [
        (b"", "application/json", None),
        (b"[1, 2.5, null]", "application/json", [1, 2.5, None]),
        (b'{"big": 123456789012345678901}', "application/json", {"big": 123456789012345678901}),
        (b"\xff\x00", "application/octet-stream", {"$bytes": "/wA="}),
        (b"NaN", "application/json", "NaN"),
        (b'event: message\ndata: {"a": 1}\n\n', "text/event-stream", {"a": 1}),
        (b"data: 1\n\ndata: 2\n\n", "text/event-stream", [1, 2]),
        (b'"unbroken-media~:not one"', "application/json", "unbroken-media:not one"),
        (b'"unbroken-media:short"', "application/json", "unbroken-media:short"),
        (b"[" * 50_000, "application/json", "[" * 50_000),
    ],
)
def test_any_result_is_told(result: bytes, content_type: str, seen: object) -> None:
    record = counter()
    record.calls = [call("/look", {}, result, revision=1, content_type=content_type)]
    (told,) = session_of(record).tool_history
    assert told.result == seen


def test_a_tool_that_was_called_over_mcp_bears_its_own_name() -> None:
    record = counter()
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "weather", "arguments": {"at": "x"}},
    }
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    record.calls = [call("/mcp", request, {}, revision=1), call("/mcp", listing, {}, revision=2)]
    told = session_of(record).tool_history
    assert [(one.name, one.arguments) for one in told] == [("weather", {"at": "x"}), ("mcp", listing)]


def test_calls_are_told_in_the_order_of_their_execution() -> None:
    record = counter()
    record.calls.reverse()
    assert [one.revision for one in session_of(record).tool_history] == [1, 2, 3, 4]


def test_cookies_are_not_told() -> None:
    assert b"secret" not in msgspec.json.encode(state())


def test_scores_of_a_verification() -> None:
    scores = state().environment.session_states["s-1"].verification_scores
    assert scores.reward == 1.0
    assert scores.components == {"partial_credit": 0.5, "correct": 1.0}
    assert scores.partial == []


def test_scores_of_single_steps() -> None:
    scores = state().environment.session_states["s-2"].verification_scores
    assert (scores.reward, scores.partial, scores.components) == (None, [0.25, -1.0], {})


def test_a_verification_that_failed_scores_nothing() -> None:
    record = counter()
    record.calls = [call("/verify", {}, {"reward": 0.0}, revision=1, status=500)]
    assert session_of(record).verification_scores.reward is None


def test_a_state_in_json_is_told_as_it_is_packed_or_not() -> None:
    import zstandard

    record = counter()
    assert record.state is not None
    packed = zstandard.ZstdCompressor().compress(record.state.data)
    record.state = msgspec.structs.replace(record.state, data=packed, packed=True)
    told = session_of(record)
    assert told.context == {"session_id_to_counter": 5}
    assert told.extensions["unbroken"]["bytes"] == len(packed)


def test_a_pickled_state_is_named_and_never_loaded() -> None:
    told = state().environment.session_states["s-2"]  # loading this one would call os.system
    assert told.context == {"$object": ["random:Random"], "digest": "d" * 64, "bytes": 11}
    assert told.extensions["unbroken"]["excluded"] == ["lock: held"]


def test_a_session_that_can_only_be_replayed_has_no_context() -> None:
    record = counter()
    record.state = None
    told = session_of(record)
    assert told.context is None
    assert told.extensions["unbroken"]["form"] == "none"


def test_a_state_that_cannot_be_read_says_so_and_spoils_nothing() -> None:
    record = counter()
    record.state = Encoded(form="json", data=b"{", digest="e" * 64, seal=b"")
    assert session_of(record).context["unreadable"]


def test_what_is_known_of_a_session_beside_the_protocol() -> None:
    assert state().environment.session_states["s-1"].extensions["unbroken"] == {
        "server": "counter",
        "rollout": "7-0",
        "attempt": 1,
        "revision": 4,
        "status": "open",
        "reason": "",
        "digest": f"{5:064x}",
        "form": "json",
        "bytes": 28,
        "state_revision": 4,
        "excluded": [],
    }


def test_the_same_id_on_two_servers_is_two_sessions() -> None:
    told = component({"counter": [segment(counter("s"))], "cards": [segment(cards("s"))]})
    assert list(layered(told, None).environment.session_states) == ["s", "counter/s"]


def test_an_agent_by_its_rollouts() -> None:
    agent = state().agents["simple"]
    assert agent.policy_state == {"policy_versions": ["3", "4"], "model_calls": 2}
    assert agent.exploration_params == {"temperature": 0.7, "top_p": 0.9}
    assert agent.reward_buffer == [1.0]
    rollouts = agent.extensions["unbroken"]["rollouts"]
    assert list(rollouts) == ["7-0", "8-0", "8-1"]
    assert {key: rollouts["7-0"][key] for key in ("attempt", "answers", "finished", "outcome", "reward")} == {
        "attempt": 0,
        "answers": 2,
        "finished": True,
        "outcome": "completed",
        "reward": 1.0,
    }
    assert rollouts["8-0"]["progress"] == "dispatched"
    assert rollouts["8-1"]["progress"] == "waiting"


def test_rows_that_ask_for_different_things_are_all_told() -> None:
    other = finished("9-0")
    other.body = body({"responses_create_params": {"temperature": 1.0, "input": "x"}})
    told = layered(component({"simple": [segment(finished(), other)]}), None)
    assert told.agents["simple"].exploration_params == {"temperature": [0.7, 1.0], "top_p": 0.9}


def test_without_a_ledger_rewards_are_those_of_the_rollouts_that_ended_well() -> None:
    records = [
        finished("1-0", reward=0.5),
        finished("1-1", reward=0.0),
        finished("1-2", status=500),
        unfinished(),
    ]
    told = layered(component({"simple": [segment(*records)]}, told=b""), meta(5))
    assert told.agents["simple"].reward_buffer == [0.5, 0.0]
    assert told.metadata.average_reward is None


def test_a_resources_server() -> None:
    resource = state().resources["counter"]
    connection = resource.connection_state
    assert connection["capability"] == "snapshot_with_exclusions"
    assert connection["exclusions"] == ["client: a connection"]
    assert {key: connection[key] for key in ("phase", "pid", "lineage", "epoch")} == {
        "phase": "quiesced",
        "pid": 4711,
        "lineage": "l" * 8,
        "epoch": 0,
    }
    assert connection["recovery"]["redone"] == 2
    assert resource.cache_data == {"pages": "dict of 3"}
    assert resource.tool_registry == [
        {"name": "increment_counter", "path": "/increment_counter", "method": "POST", "schema": "f00"},
        {"name": "look", "path": "/look", "method": "POST", "schema": ""},
    ]
    assert resource.extensions["unbroken"]["class"] == "StatefulCounterResourcesServer"


def test_model_servers_hold_no_state_and_are_named() -> None:
    assert list(state().extensions["unbroken"]["models"]) == ["policy"]


def test_metadata() -> None:
    told = state().metadata
    assert (told.total_steps, told.completed_episodes, told.average_reward) == (12, 2, 0.75)
    assert told.checkpoint_reason == "every 10 steps"
    assert state().timestamp == "2025-12-06T05:48:20.500Z"


def test_the_mean_reward_is_that_of_all_rollouts_where_the_ledger_knows_it() -> None:
    ledger = msgspec.msgpack.encode(
        {"finished": 9, "completed": 3, "rewards": 0.3 + 0.3 + 0.3, "entries": []}
    )
    told = layered(component(told=ledger), meta(12)).metadata
    assert (told.completed_episodes, told.average_reward) == (3, 0.3)


def test_a_training_that_has_no_servers_yet() -> None:
    told = layered(component({}, of={}, told=b""), meta(0))
    assert (told.environment.env_id, told.resources, told.agents) == ("", {}, {})


def test_another_major_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match=r"2\.0\.0"):
        layered(component(protocol="2.0.0"), None)


def test_a_newer_minor_version_is_read() -> None:
    assert layered(component(protocol="1.9.0"), None).version == "1.9.0"


@pytest.mark.parametrize(
    "broken",
    [
        Component("gym", {"gym": Dict(v={})}),
        Component("gym", {"gym": Coded(k="unbroken.nemo_gym", v=Dict(v={}))}),
        component({"counter": [b"not a segment"]}),
        component({"counter": [msgspec.msgpack.encode([{"key": "s", "data": b"not a record"}])]}),
        component(told=b"not a ledger"),
    ],
)
def test_what_cannot_be_read_is_said_in_our_words(broken: Component) -> None:
    with pytest.raises((CorruptObject, UnsupportedFormat)):
        layered(broken, None)


def test_a_server_that_is_neither_known_to_the_ledger_nor_has_records_is_told() -> None:
    told = layered(component({}, of={"idle": status("resources", "idle", "Idle")}, told=b""), None)
    assert list(told.resources) == ["idle"]


def packed(data: bytes) -> object:
    return sessions.context(Encoded(form="json", data=data, digest="d", seal=b"", packed=True))


def test_a_packed_state_is_shown() -> None:
    assert packed(zstandard.ZstdCompressor().compress(b'{"a": 1}')) == {"a": 1}


def test_a_state_that_would_fill_the_memory_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are made of what nobody has checked a seal of."""
    lying = b"\x28\xb5\x2f\xfd\xe0" + (1 << 45).to_bytes(8, "little") + b"\x01\x00\x00"
    assert packed(lying) == {
        "$object": [],
        "digest": "d",
        "bytes": 16,
        "unreadable": "it would be larger than 256 MiB",
    }
    monkeypatch.setattr(sessions, "MOST", 1 << 20)
    true = zstandard.ZstdCompressor().compress(b"0" * (2 << 20))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"0" * (2 << 20))
    for bomb in (true, silent):
        found = packed(bomb)
        assert isinstance(found, dict)
        assert found["unreadable"] == "it would be larger than 1 MiB"


def test_a_state_that_is_nested_without_end_is_named() -> None:
    found = sessions.context(Encoded(form="json", data=b"[" * 100_000, digest="d", seal=b""))
    assert isinstance(found, dict)
    assert found["$object"] == []

"""The layered document: its schema, its versions, its digest, and that what was written once is read for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.adapters.nemo_gym.layered_examples import component
from tests.repo.states import meta
from unbroken.adapters.nemo_gym import integrity, protocol
from unbroken.adapters.nemo_gym.view.layers import layered
from unbroken.errors import CorruptObject, UnsupportedFormat

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "schema" / "gym-state-1.json"
GOLDEN = ROOT / "tests" / "golden" / "gym-state-1.json"
NOW = "2025-12-06T06:00:00.000Z"


def example() -> protocol.GymState:
    return layered(component(), meta(12))


def written(**changes: object) -> dict[str, Any]:
    """Return a document as another program would read it, changed and with a fitting digest."""
    document = {**protocol.plain(example()), **changes}
    return integrity.sealed(document, timestamp=NOW)


def as_bytes(document: object) -> bytes:
    return json.dumps(document).encode()


def test_the_published_schema_is_that_of_the_types() -> None:
    assert json.loads(SCHEMA.read_text()) == protocol.schema()


def test_the_schema_is_one_and_says_what_it_is() -> None:
    schema = protocol.schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["$id"] == "urn:unbroken:gym-state:1"
    assert schema["title"]


def test_documents_keep_to_the_schema() -> None:
    validator = Draft202012Validator(protocol.schema())
    validator.validate(json.loads(protocol.write(example(), timestamp=NOW)))
    validator.validate(protocol.plain(example()))
    validator.validate(json.loads(GOLDEN.read_text()))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"version": 1}, "version"),
        ({"environment": {"env_id": "x"}}, "environment"),
        ({"resources": {"a": {"tool_registry": {}}}}, "resources"),
        ({"timestamp": None}, "timestamp"),
    ],
)
def test_what_the_schema_refuses_is_refused_on_reading(changes: dict[str, object], where: str) -> None:
    document = written(**changes)
    (found, *_) = Draft202012Validator(protocol.schema()).iter_errors(document)
    assert found.absolute_path[0] == where
    with pytest.raises(UnsupportedFormat, match="no state of a NeMo Gym environment"):
        protocol.read(as_bytes(document))


def test_every_layer_and_field_has_its_published_name() -> None:
    document = protocol.plain(example())
    assert {"version", "timestamp", "environment", "agents", "resources", "metadata"} <= document.keys()
    assert {"env_id", "config_hash", "session_states"} <= document["environment"].keys()
    for session in document["environment"]["session_states"].values():
        assert {"context", "tool_history", "verification_scores"} <= session.keys()
    for agent in document["agents"].values():
        assert {"policy_state", "exploration_params", "reward_buffer"} <= agent.keys()
    for resource in document["resources"].values():
        assert {"connection_state", "cache_data", "tool_registry"} <= resource.keys()
    told = {"total_steps", "completed_episodes", "average_reward", "checkpoint_reason"}
    assert told <= document["metadata"].keys()
    sealed = json.loads(protocol.write(example(), timestamp=NOW))["_integrity"]
    assert sealed.keys() == {"hash_algorithm", "hash_value", "timestamp"}


def test_what_is_written_is_read() -> None:
    state = example()
    found = protocol.read(protocol.write(state, timestamp=NOW))
    assert found.integrity is not None
    assert found.integrity.timestamp == NOW
    found.integrity = None
    assert found == state


def test_a_document_without_a_digest_is_read() -> None:
    assert protocol.read(as_bytes(protocol.plain(example()))) == example()


@pytest.mark.parametrize("version", ["2.0.0", "0.9.0", "11.0.0"])
def test_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedFormat, match=version) as refused:
        protocol.read(as_bytes(written(version=version)))
    assert refused.value.hint


@pytest.mark.parametrize("version", ["1.0.7", "1.4.0"])
def test_a_newer_minor_version_is_read_and_its_news_are_left_out(version: str) -> None:
    document = written(version=version, weather={"rain": True})
    assert "weather" in json.loads(as_bytes(document))
    found = protocol.read(as_bytes(document))
    assert found.version == version
    assert found.environment == example().environment


def test_an_older_minor_version_lacks_what_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "VERSION", "1.3.0")
    document = protocol.plain(example())
    assert document["version"] == "1.0.0"
    del document["extensions"], document["metadata"]["checkpoint_reason"]
    assert protocol.read(as_bytes(document)).metadata.checkpoint_reason == ""


@pytest.mark.parametrize("version", ["1", "1.0", "one.0.0", "", "1.0.0-rc", "-1.0.0", "1.0.0.0"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedFormat, match="no version"):
        protocol.read(as_bytes(written(version=version)))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"{", b"null", b'{"version": 1}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedFormat, match="no state of a NeMo Gym environment"):
        protocol.read(data)


def test_a_changed_document_is_found_wherever_it_was_changed() -> None:
    text = protocol.write(example(), timestamp=NOW).decode()
    for before, after in [
        ('"status": 404', '"status": 405'),
        ('"reward": 1.0', '"reward": 1.5'),
        ("7-0", "7-1"),
    ]:
        assert before in text
        with pytest.raises(CorruptObject, match="changed since"):
            protocol.read(text.replace(before, after, 1).encode())


def test_a_field_of_a_newer_version_counts_for_the_digest() -> None:
    document = written(version="1.1.0", weather="rain")
    document["weather"] = "sun"
    with pytest.raises(CorruptObject):
        protocol.read(as_bytes(document))


def test_order_and_blanks_do_not_count_for_the_digest() -> None:
    document = written()
    turned = dict(reversed(document.items()))
    assert protocol.read(json.dumps(turned, indent=7, ensure_ascii=True).encode()).integrity is not None


@pytest.mark.parametrize("entry", [{}, {"hash_algorithm": "md5", "hash_value": "0"}, "x", []])
def test_a_digest_of_another_kind_is_refused(entry: object) -> None:
    with pytest.raises(UnsupportedFormat, match="no digest that is known"):
        protocol.read(as_bytes({**protocol.plain(example()), "_integrity": entry}))


def test_the_digest_is_the_one_that_the_page_describes() -> None:
    import hashlib

    document = json.loads(protocol.write(example(), timestamp=NOW))
    entry = document.pop("_integrity")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert entry["hash_value"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_golden_document_is_read_for_ever() -> None:
    state = protocol.read(GOLDEN.read_bytes())
    assert state.integrity is not None
    assert list(state.environment.session_states) == ["s-2", "s-1"]
    counted = state.environment.session_states["s-1"]
    assert counted.context == {"session_id_to_counter": 5}
    assert [call.name for call in counted.tool_history] == [
        "seed_session",
        "increment_counter",
        "look",
        "verify",
    ]
    assert counted.verification_scores.reward == 1.0
    assert state.agents["simple"].exploration_params == {"temperature": 0.7, "top_p": 0.9}
    assert state.metadata.completed_episodes == 2


def test_the_present_version_writes_the_golden_document() -> None:
    assert protocol.write(example(), timestamp=NOW) == GOLDEN.read_bytes().rstrip(b"\n")

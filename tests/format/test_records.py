"""Records come back equal, refuse what they do not mean, and raise only our errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import CorruptObject, InternalError, UnsupportedFormat
from unbroken.format import manifest as manifests
from unbroken.format import meta as metas
from unbroken.format import wire
from unbroken.format.aside import Aside
from unbroken.format.digest import digest_of
from unbroken.format.journal import JournalRecord
from unbroken.format.manifest import DocumentEntry, Manifest
from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.format.mirror import MirrorRecord
from unbroken.format.ranks import (
    Admission,
    Ballot,
    Doubt,
    Finding,
    Hello,
    Outcome,
    Proposal,
    RankRecord,
    SaveOrder,
    Verdict,
)
from unbroken.format.records import (
    MAGIC,
    Commit,
    EpochRecord,
    EpochStart,
    FormatRecord,
    HistoryRecord,
    Lease,
    LowWater,
    Pending,
    Record,
    Worker,
    WorkersRecord,
    decode_format,
)
from unbroken.types import Epoch, Fidelity, Sequence, Step, WriteId

DIGEST = digest_of(b"x")
WRITE = WriteId("3f9c2e01ab44e7")
COMMIT = Commit(
    sequence=Sequence(42),
    step=Step(12_000),
    segment=1,
    epoch=Epoch(7),
    write_id=WRITE,
    directory=f"steps/step_000000012000-{WRITE}",
    manifest_digest=DIGEST,
    time=1.75e9,
    metrics={"reward": 1.5, "loss": math.inf, "low": -math.inf},
)
MANIFEST = Manifest(
    job="run",
    step=Step(12_000),
    epoch=Epoch(7),
    write_id=WRITE,
    meta=DIGEST,
    documents={"model.json": DocumentEntry(component="model", digest=DIGEST, size=10)},
    blobs={DIGEST: 1},
)
META = Meta(
    job="run",
    step=Step(5),
    reason="every",
    env_seeds=[3, None, 2**127],
    fidelity={
        "model": ComponentFidelity(Fidelity.EXACT),
        "env": ComponentFidelity(Fidelity.APPROXIMATE, "why"),
    },
    counters={"nested": {"list": [1, 2.5, None, True], "$": "x", "nan": "no"}},
)
RECORDS: list[Record] = [
    COMMIT,
    MANIFEST,
    META,
    Pending(job="run", pid=1, step=Step(5), reason="every"),
    EpochRecord(job="run", epoch=Epoch(3), write_id=WRITE),
    EpochStart(epoch=Epoch(3), first=Sequence(9), write_id=WRITE),
    HistoryRecord(fault="hard", tier="older", sequence=8, steps_lost=12, reasons=["damaged"]),
    WorkersRecord(pid=1, workers=[Worker(pid=2, process_start="7")]),
    Lease(epoch=Epoch(3), pid=12),
    LowWater(sequence=Sequence(5)),
    Hello(epoch=Epoch(3), rank=1, world_size=2, nonce="0a"),
    Admission(epoch=Epoch(3), write_id=WRITE, world_size=2, nonces=["0a"]),
    Proposal(sequence=8),
    Ballot(vote="refused", reason="why", differences=["one"]),
    Verdict(decision="stop", reason="why"),
    SaveOrder(step=Step(5), write_id=WRITE, directory=f"steps/step_000000000005-{WRITE}"),
    RankRecord(step=Step(5), rank=1, write_id=WRITE, agree={"weights": DIGEST}, status={"seed": 2**70}),
    Doubt(components=["weights"], documents={}, blobs={DIGEST: 5}, ranks=[1]),
    Finding(rank=1, differences=["here"]),
    Outcome(sequence=0, reason="why"),
    FormatRecord(magic=MAGIC),
    MirrorRecord(id=WRITE),
    Aside(job="run", pid=1, sequences=[Sequence(4), Sequence(9)]),
    JournalRecord(
        step=Step(5),
        segment=1,
        position="end",
        time=1.5,
        state=DIGEST,
        document=7,
        blobs=[1, 2],
        content=DIGEST,
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("indent", [0, 2])
def test_round_trip(record: Record, indent: int) -> None:
    data = wire.encode(record, indent=indent)
    assert wire.decode(data, type(record)) == record
    assert wire.encode(wire.decode(data, type(record)), indent=indent) == data


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_one_record_is_not_another(record: Record) -> None:
    for other in RECORDS:
        if type(other) is not type(record):
            with pytest.raises(CorruptObject):
                wire.decode(wire.encode(record), type(other))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_newer_version_is_told_from_damage(record: Record) -> None:
    newer = msgspec.json.decode(wire.encode(record))
    newer["version"] = 1000
    with pytest.raises(UnsupportedFormat):
        wire.decode(msgspec.json.encode(newer), type(record))
    # Also where the newer version has changed what a field holds.
    newer["record"] = {"quite": "different"}
    with pytest.raises(UnsupportedFormat):
        wire.decode(msgspec.json.encode(newer), type(record))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@given(data=st.data())
def test_mutated_bytes_give_a_record_or_our_error(record: Record, data: st.DataObject) -> None:
    raw = bytearray(wire.encode(record, indent=0))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        if not raw:
            break
    try:
        assert isinstance(wire.decode(bytes(raw), type(record)), type(record))
    except (CorruptObject, UnsupportedFormat):
        pass


@given(st.binary(max_size=200), st.sampled_from(RECORDS))
def test_any_bytes_give_our_error(raw: bytes, record: Record) -> None:
    with pytest.raises((CorruptObject, UnsupportedFormat)):
        wire.decode(raw, type(record))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$", "v", "a"]) | st.text(), inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_counters_hold_any_plain_fact(counters: dict[str, Any]) -> None:
    meta = metas.decode(metas.encode(Meta(step=Step(0), counters=counters)))
    assert same(meta.counters, counters)


@given(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3))
def test_metrics_may_be_anything_that_a_float_can(metrics: dict[str, float]) -> None:
    commit = msgspec.structs.replace(COMMIT, metrics=metrics)
    assert same(wire.decode(wire.encode(commit), Commit).metrics, metrics)


def test_facts_from_frameworks_become_plain() -> None:
    counters = {
        "float32": np.float32(0.5),
        "float64": np.float64("nan"),
        "int": np.int64(3),
        "bool": np.bool_(True),
        "array": np.arange(3),
        "zero": np.array(4),
        "path": Path("/x"),
        "set": {1},
        "keys": {1: "a"},
        "surrogate": "\ud800",
    }
    found = metas.decode(metas.encode(Meta(step=Step(0), counters=counters))).counters
    assert math.isnan(found.pop("float64"))
    assert found == {
        "float32": 0.5,
        "int": 3,
        "bool": True,
        "array": [0, 1, 2],
        "zero": 4,
        "path": "/x",
        "set": [1],
        "keys": {"1": "a"},
        "surrogate": "\\ud800",
    }


def test_what_has_no_plain_form_is_our_bug() -> None:
    with pytest.raises(InternalError, match="object"):
        metas.encode(Meta(step=Step(0), counters={"x": object()}))


def nested(levels: int) -> bytes:
    return b'{"record":"meta","step":1,"counters":{"a":' + b"[" * levels + b"]" * levels + b"}}"


def test_deep_nesting_is_our_error() -> None:
    with pytest.raises(CorruptObject):
        metas.decode(nested(100_000))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InternalError):
        metas.encode(Meta(step=Step(0), counters={"x": deep}))
    while deep:  # freeing a deep list must not be left to the collector
        deep = deep[0]


CHANGES: list[tuple[Record, str, object]] = [
    (COMMIT, "directory", "../../etc"),
    (COMMIT, "directory", "steps/step_000000012000-a/../b"),
    (COMMIT, "directory", "steps/step_000000012000-ab\n"),
    (COMMIT, "sequence", 0),
    (COMMIT, "sequence", 10**10),
    (COMMIT, "step", -1),
    (COMMIT, "write_id", "a/b"),
    (COMMIT, "write_id", ""),
    (COMMIT, "manifest_digest", "b3:xyz"),
    (COMMIT, "position", "middle"),
    (COMMIT, "good", "yes"),
    (COMMIT, "time", "now"),
    (MANIFEST, "documents", {"../x.json": {"component": "x", "digest": DIGEST, "size": 1}}),
    (MANIFEST, "documents", {".hidden": {"component": "x", "digest": DIGEST, "size": 1}}),
    (MANIFEST, "documents", {"x.json": {"component": "x", "digest": DIGEST, "size": -1}}),
    (MANIFEST, "documents", {"x.json": {"component": "x", "digest": DIGEST, "size": 1, "format": "pickle"}}),
    (MANIFEST, "blobs", {DIGEST: -1}),
    (MANIFEST, "blobs", {DIGEST: 2**63}),
    (MANIFEST, "blobs", {"b3:00": 1}),
    (MANIFEST, "blobs", [DIGEST]),
    (META, "fidelity", {"model": {"fidelity": "perfect"}}),
]


@pytest.mark.parametrize(("record", "field", "value"), CHANGES)
def test_a_field_that_means_nothing_is_refused(record: Record, field: str, value: object) -> None:
    plain = msgspec.json.decode(wire.encode(record))
    assert field in plain
    plain[field] = value
    with pytest.raises(CorruptObject, match=r"k\.json"):
        wire.decode(msgspec.json.encode(plain), type(record), key="k.json")


def test_unknown_fields_are_left_alone() -> None:
    plain = msgspec.json.decode(wire.encode(COMMIT))
    plain["later"] = [1]
    assert wire.decode(msgspec.json.encode(plain), Commit) == COMMIT


def test_a_component_stands_in_one_document() -> None:
    entry = MANIFEST.documents["model.json"]
    twice = msgspec.structs.replace(MANIFEST, documents={"a.json": entry, "b.json": entry})
    with pytest.raises(CorruptObject, match="twice"):
        manifests.decode(manifests.encode(twice))
    assert MANIFEST.document("model") == "model.json"
    assert MANIFEST.document("other") is None


def test_format_record() -> None:
    assert decode_format(wire.encode(FormatRecord(magic=MAGIC, optional=["later"]))) == FormatRecord(
        magic=MAGIC, optional=["later"]
    )
    with pytest.raises(UnsupportedFormat, match="'holographic'"):
        decode_format(wire.encode(FormatRecord(magic=MAGIC, mandatory=["holographic"])))
    with pytest.raises(CorruptObject, match="does not belong"):
        decode_format(wire.encode(FormatRecord(magic="broken")))


def test_people_can_read_a_commit() -> None:
    text = wire.encode(COMMIT).decode()
    assert '\n  "step": 12000,\n' in text


@pytest.mark.parametrize("decode", [metas.decode, manifests.decode, decode_format])
def test_the_name_stands_in_the_error(decode: Callable[..., object]) -> None:
    with pytest.raises(CorruptObject, match=r"steps/x\.json") as caught:
        decode(b"{", key="steps/x.json")
    assert caught.value.key == "steps/x.json"

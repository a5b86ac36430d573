"""A small run of NeMo Gym as its servers' records tell it, laid out as a checkpoint has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym.control import VERSION, Record, Recovery, Status, Tool
from unbroken.adapters.nemo_gym.records import Answer, Call, Encoded, RolloutRecord, SessionRecord, encode
from unbroken.adapters.nemo_gym.trainer.ledger import Entry
from unbroken.state.nodes import Bytes, Coded, Dict, List, Value
from unbroken.state.snapshot import Component, Snapshot

DIGEST = "ab" * 32
PNG = b"\x89PNG not really"


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def call(
    path: str, arguments: object, result: object, *, revision: int, status: int = 200, **other: Any
) -> Call:
    return Call(
        id=other.get("id", f"7-0#{revision}"),
        path=path,
        arguments=body(arguments),
        status=status,
        result=result if isinstance(result, bytes) else body(result),
        content_type=other.get("content_type", "application/json"),
        revision=revision,
        order=revision,
        started=other.get("started", 1_765_000_000.0 + revision),
        seconds=0.25,
        cookies=("session=secret",),
    )


def counter(
    session: str = "s-1", *, count: int = 5, rollout: str = "7-0", started: float = 1_765_000_000.0
) -> SessionRecord:
    """A session of the counter: seeded, counted, looked at an image, verified."""
    return SessionRecord(
        id=session,
        rollout=rollout,
        attempt=1,
        revision=4,
        calls=[
            call("/seed_session", {"initial_count": 3}, {}, revision=1, started=started),
            call(
                "/increment_counter", {"count": count - 3}, {"success": True}, revision=2, started=started + 1
            ),
            call(
                "/look",
                {"picture": f"unbroken-media:{DIGEST};image/png"},
                b"no such\nroute",
                revision=3,
                status=404,
                content_type="text/plain",
                started=started + 2,
            ),
            call(
                "/verify",
                {},
                {"reward": 1.0, "partial_credit": 0.5, "correct": True, "_ng_task_index": 7, "who": "me"},
                revision=4,
                started=started + 3,
            ),
        ],
        state=Encoded(
            form="json", data=body({"session_id_to_counter": count}), digest=f"{count:064x}", seal=b"s" * 16
        ),
        state_revision=4,
    )


def cards(session: str = "s-2") -> SessionRecord:
    """A session of a game with a generator in it: two steps so far."""
    return SessionRecord(
        id=session,
        rollout="8-0",
        revision=2,
        calls=[
            call("/step", {"action": "hit"}, {"reward": 0.25, "done": False}, revision=1),
            call("/step", {"action": "stand"}, {"reward": -1, "done": True}, revision=2),
        ],
        state=Encoded(
            form="pickle",
            data=b"cos\nsystem\n",
            digest="d" * 64,
            seal=b"s" * 16,
            classes=("random:Random",),
            excluded=("lock: held",),
        ),
        state_revision=2,
    )


def finished(rollout: str = "7-0", *, reward: float | None = 1.0, status: int = 200) -> RolloutRecord:
    return RolloutRecord(
        id=rollout,
        body=body({"responses_create_params": {"input": "count", "temperature": 0.7, "top_p": 0.9}}),
        answers=[
            Answer(
                key="a/1",
                scope="/run",
                server="policy",
                path="/v1/responses",
                status=200,
                policy_version="3",
                model=True,
            ),
            Answer(key="b/1", scope="/run", server="counter", path="/increment_counter", status=200),
        ],
        status=status,
        result=body({"reward": reward}) if status else b"",
    )


def unfinished(rollout: str = "8-0") -> RolloutRecord:
    record = finished(rollout, status=0)
    record.answers[0] = msgspec.structs.replace(record.answers[0], policy_version="4")
    return record


def status(role: Any, name: str, class_name: str, **other: Any) -> Status:
    facts: dict[str, Any] = {
        "phase": "quiesced",
        "pid": 4711,
        "lineage": "l" * 8,
        "config_hash": f"hash of {name}",
        **other,
    }
    return Status(role=role, name=name, class_name=class_name, **facts)


def statuses() -> dict[str, Status]:
    return {
        "counter": status(
            "resources",
            "counter",
            "StatefulCounterResourcesServer",
            capability="snapshot_with_exclusions",
            exclusions=("client: a connection",),
            tools=(
                Tool(name="increment_counter", path="/increment_counter", schema="f00"),
                Tool(name="look", path="/look"),
            ),
            cache={"pages": "dict of 3"},
            recovery=Recovery(source="log", sessions=1, redone=2),
        ),
        "cards": status("resources", "cards", "Blackjack", capability="snapshot"),
        "simple": status("agent", "simple", "SimpleAgent", model_calls=2),
        "policy": status("model", "policy", "ScriptedModel"),
    }


def segment(*found: SessionRecord | RolloutRecord, gone: Sequence[str] = ()) -> bytes:
    alive = [Record(key=record.id, data=encode(record)) for record in found]
    return msgspec.msgpack.encode([*alive, *(Record(key=key, data=b"") for key in gone)])


def ledger() -> bytes:
    """Three rollouts have ended, two with a reward; of those that training has not got yet one has a reward, and one is under way."""
    row = body({"agent_ref": {"name": "simple"}})
    entries = [
        Entry(
            id="7-0",
            row=row,
            agent="simple",
            progress="finished",
            outcome="completed",
            reward=1.0,
            finished=3,
        ),
        Entry(id="8-0", row=row, agent="simple", progress="dispatched", attempt=1),
        Entry(id="8-1", row=row, agent="simple"),
    ]
    return msgspec.msgpack.encode(
        {"version": 1, "round": 9, "finished": 3, "completed": 2, "rewards": 1.5, "entries": entries}
    )


def component(
    segments: Mapping[str, Sequence[bytes]] | None = None,
    *,
    name: str = "gym",
    place: str = "gym",
    protocol: str = VERSION,
    told: bytes | None = None,
    of: Mapping[str, Status] | None = None,
) -> Component:
    """Return a component of a checkpoint, by the layout that all agree on."""
    known = statuses() if of is None else of
    told = ledger() if told is None else told
    if segments is None:
        segments = {
            "counter": [segment(counter("s-0", count=9), counter()), segment(gone=["s-0"])],
            "cards": [segment(cards())],
            "simple": [segment(finished(), unfinished())],
        }
    servers: dict[str, Value] = {
        server: Dict(
            v={
                "status": Bytes(v=msgspec.msgpack.encode(one)),
                "lineage": one.lineage,
                "mark": 12,
                "shared": Bytes(v=b""),
                "segments": List(v=[Bytes(v=blob) for blob in segments.get(server, ())]),
                "media": Dict(v={DIGEST: Bytes(v=PNG)} if server == "counter" else {}),
            }
        )
        for server, one in known.items()
    }
    settings: dict[str, Value] = {
        server: Dict(v={"role": one.role, "class": one.class_name, "config_hash": one.config_hash})
        for server, one in known.items()
    }
    records = Dict(v={"time": 1_765_000_100.5, "ledger": Bytes(v=told), "servers": Dict(v=servers)})
    payload = Dict(v={"protocol": protocol, "<records>": records, "servers": Dict(v=settings)})
    return Component(name, {place: Coded(k="unbroken.nemo_gym", v=payload)})


def snapshot(*parts: Component) -> Snapshot:
    return Snapshot({part.name: part for part in parts})

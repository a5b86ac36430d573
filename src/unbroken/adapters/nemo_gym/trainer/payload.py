"""What stands in a checkpoint under the component `gym`: written as nodes, and read as plain records.

`<records>` holds all that a run grows; it is left out when a restore is compared, because the servers compare what
they hold by their own digests, and it holds times. Beside it stands what a changed setting is found by.

Not promised: what a server's records mean. `view` and the servers know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from unbroken.adapters.nemo_gym.control import VERSION, Role, Status
from unbroken.adapters.nemo_gym.trainer.segments import read_segments
from unbroken.errors import CorruptObject, UnsupportedFormat
from unbroken.state.nodes import INLINE_BYTES, Bytes, Coded, Dict, List, Value
from unbroken.state.snapshot import Component

if TYPE_CHECKING:
    from unbroken.state.walk import Walk

CODEC = "unbroken.nemo_gym"
COMPONENT = "gym"
RECORDS = "<records>"

Reader = Callable[[Bytes], bytes]
"""Returns what a node of bytes holds, which may lie in a blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a server was built, as far as a checkpoint depends on it."""

    role: Role
    class_name: str
    config_hash: str

    @classmethod
    def of(cls, status: Status) -> Setting:
        return cls(role=status.role, class_name=status.class_name, config_hash=status.config_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPart:
    """What a checkpoint holds of one server: its records up to `mark` of the log `lineage`."""

    status: Status
    lineage: str = ""
    mark: int = 0
    shared: bytes = b""
    segments: tuple[bytes, ...] = ()
    media: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def records(self) -> dict[str, bytes]:
        """The records by key: of a resources server its sessions, of an agent its rollouts."""
        return read_segments(self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The whole component. `ledger` is what `Ledger.decode` reads; without records, it is that of a start's settings."""

    protocol: str = VERSION
    settings: Mapping[str, Setting]
    time: float = 0.0
    ledger: bytes = b""
    servers: Mapping[str, ServerPart] = field(default_factory=dict[str, ServerPart])


def write_payload(payload: Payload, walk: Walk) -> Dict:
    """Return the payload as nodes. Bytes stay where they are: nobody writes to them."""
    fields: dict[str, Value] = {"protocol": payload.protocol}
    if walk.contents:
        fields[RECORDS] = Dict(
            v={
                "time": payload.time,
                "ledger": _bytes(payload.ledger, walk),
                "servers": Dict(v={name: _server(part, walk) for name, part in payload.servers.items()}),
            }
        )
    fields["servers"] = Dict(
        v={
            name: Dict(v={"role": s.role, "class": s.class_name, "config_hash": s.config_hash})
            for name, s in sorted(payload.settings.items())
        }
    )
    return Dict(v=fields)


def read_payload(component: Component) -> Payload:
    """Return what the component `gym` of a loaded checkpoint holds.

    Raises:
        CorruptObject: it does not hold what it should.
        UnsupportedFormat: it was written under another major version of the protocol.
    """
    for node in component.roots.values():
        if isinstance(node, Coded) and node.k == CODEC:
            return payload_of(node.v, lambda b: component.content(b.b).tobytes() if b.b >= 0 else b.v)
    raise CorruptObject(f"The component {component.name} holds nothing of NeMo Gym.")


def payload_of(node: Value, read: Reader) -> Payload:
    """Return what a payload says. Raises as `read_payload` does."""
    fields = _fields(node)
    protocol = _text(fields.get("protocol"))
    check_protocol(protocol, "The checkpoint")
    settings = {name: _setting(_fields(s)) for name, s in _fields(fields.get("servers")).items()}
    if RECORDS not in fields:
        return Payload(protocol=protocol, settings=settings)
    records = _fields(fields[RECORDS])
    time = records.get("time")
    return Payload(
        protocol=protocol,
        settings=settings,
        time=time if isinstance(time, float) else 0.0,
        ledger=_read(records.get("ledger"), read),
        servers={name: _part(_fields(s), read) for name, s in _fields(records.get("servers")).items()},
    )


def check_protocol(version: str, whose: str) -> None:
    """Refuse another major version of the protocol.

    Raises:
        UnsupportedFormat: it is one, or no version at all.
    """
    major = version.partition(".")[0]
    if major != VERSION.partition(".")[0]:
        raise UnsupportedFormat(
            f"{whose} speaks version {version or 'nothing'} of the protocol for NeMo Gym, and this Unbroken {VERSION}.",
            hint="Use the same Unbroken on both sides.",
        )


def _server(part: ServerPart, walk: Walk) -> Value:
    return Dict(
        v={
            "status": _bytes(msgspec.msgpack.encode(part.status), walk),
            "lineage": part.lineage,
            "mark": part.mark,
            "shared": _bytes(part.shared, walk),
            "segments": List(v=[_bytes(segment, walk) for segment in part.segments]),
            "media": Dict(v={digest: _bytes(data, walk) for digest, data in sorted(part.media.items())}),
        }
    )


def _bytes(data: bytes, walk: Walk) -> Bytes:
    if len(data) <= INLINE_BYTES:
        return Bytes(v=data)
    return Bytes(b=walk.adopt(np.frombuffer(data, np.uint8)))


def _part(fields: Mapping[str, Value], read: Reader) -> ServerPart:
    mark, segments = fields.get("mark"), fields.get("segments")
    try:
        status = msgspec.msgpack.decode(_read(fields.get("status"), read), type=Status)
    except msgspec.DecodeError as error:
        raise CorruptObject(f"The status of a server of NeMo Gym cannot be read: {error}.") from error
    return ServerPart(
        status=status,
        lineage=_text(fields.get("lineage")),
        mark=mark if isinstance(mark, int) else 0,
        shared=_read(fields.get("shared"), read),
        segments=tuple(_read(s, read) for s in segments.v) if isinstance(segments, List) else (),
        media={digest: _read(data, read) for digest, data in _fields(fields.get("media")).items()},
    )


def _setting(fields: Mapping[str, Value]) -> Setting:
    try:
        role = msgspec.convert(fields.get("role"), Role)
    except msgspec.ValidationError as error:
        raise CorruptObject(f"A server of NeMo Gym was saved in no known role: {error}.") from error
    return Setting(
        role=role, class_name=_text(fields.get("class")), config_hash=_text(fields.get("config_hash"))
    )


def _fields(node: Value) -> Mapping[str, Value]:
    if not isinstance(node, Dict) or node.v is None:
        raise CorruptObject("What was saved of NeMo Gym is not laid out as it should be.")
    return node.v


def _text(node: Value) -> str:
    if not isinstance(node, str):
        raise CorruptObject("What was saved of NeMo Gym lacks a name where one should be.")
    return node


def _read(node: Value, read: Reader) -> bytes:
    if not isinstance(node, Bytes):
        raise CorruptObject("What was saved of NeMo Gym lacks bytes where some should be.")
    return read(node)

"""Plain values that JSON cannot hold as themselves."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from unbroken.state.nodes import Bytes, Float, Int
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_float(graft: Graft, node: Float, twin: object) -> Any:
    if node.v in ("inf", "-inf", "nan"):
        return float(node.v)
    try:
        (value,) = struct.unpack(">d", bytes.fromhex(node.v))
    except (ValueError, struct.error):
        return graft.refuse(f"{node.v[:40]!r} is no float.", twin)
    return value if math.isnan(value) else graft.refuse(f"{node.v[:40]!r} is no float.", twin)


def plan_int(graft: Graft, node: Int, twin: object) -> Any:
    try:
        return int(node.v, 16)
    except ValueError:
        return graft.refuse(f"{node.v[:40]!r} is no integer.", twin)


def plan_bytes(graft: Graft, node: Bytes, twin: object) -> Any:
    data = graft.bytes_of(node.b, node.v).tobytes()
    if not node.mutable:
        return graft.bind(node, twin if type(twin) is bytes and twin == data else data)
    own = graft.use(node, twin, fits=type(twin) is bytearray)
    if own is MISSING:
        return graft.bind(node, bytearray(data))
    if own != data:
        graft.write(own.__setitem__, slice(None), data)
    return own

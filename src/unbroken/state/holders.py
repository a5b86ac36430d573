"""Codecs for objects of the standard library that hold values of a run and hide them from a walk.

Not promised: `queue.SimpleQueue`, whose content cannot be read without taking it out; it is said to be not
captured.
"""

from __future__ import annotations

import array
import io
import queue
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.errors import CorruptObject
from unbroken.state.nodes import Bytes, Dict, List, Value, class_name
from unbroken.state.policy import Codec

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


def _raw(node: object, graft: Graft) -> bytes:
    if not isinstance(node, Bytes):
        raise CorruptObject(f"{graft.place} should hold bytes.")
    return graft.bytes_of(node.b, node.v).tobytes()


def _fields(payload: Value, graft: Graft, *names: str) -> list[Value]:
    found = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
    if any(name not in found for name in names):
        raise CorruptObject(f"{graft.place} lacks one of {', '.join(names)}.")
    return [found[name] for name in names]


class ArrayCodec:
    """`array.array`, filled in place."""

    name = "array.array"
    mutable = True
    exact = True

    def encode(self, value: Any, walk: Walk) -> Value:
        b, data = walk.pack(np.frombuffer(value.tobytes(), np.uint8))
        return Dict(v={"typecode": value.typecode, "data": Bytes(b=b, v=data)})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        typecode, data = _fields(payload, graft, "typecode", "data")
        made: array.array[Any]
        try:
            made = array.array(str(typecode))
            made.frombytes(_raw(data, graft))
        except ValueError as error:
            return graft.refuse(f"is no array: {error}", twin)
        if isinstance(twin, array.array) and twin.typecode == typecode and graft.claim(twin):
            graft.write(twin.__setitem__, slice(None), made)
            return twin
        return made


class BufferCodec:
    """`io.BytesIO` and `io.StringIO`: content and position, in place."""

    mutable = True
    exact = True

    def __init__(self, name: str, kind: type[io.BytesIO | io.StringIO]) -> None:
        self.name = name
        self._kind: Any = kind

    def encode(self, value: Any, walk: Walk) -> Value:
        content = value.getvalue()
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        b, data = walk.pack(np.frombuffer(raw, np.uint8))
        return Dict(v={"data": Bytes(b=b, v=data), "position": value.tell()})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        data, position = _fields(payload, graft, "data", "position")
        raw = _raw(data, graft)
        own = type(twin) is self._kind and graft.claim(twin)
        result: Any = twin if own else self._kind()

        def fill() -> None:
            result.seek(0)
            result.truncate()
            result.write(raw.decode("utf-8", "surrogatepass") if self._kind is io.StringIO else raw)
            result.seek(position)

        graft.write(fill)
        return result


class QueueCodec:
    """`queue.Queue`, `LifoQueue` and `PriorityQueue`: what waits in them, in place."""

    name = "queue"
    mutable = True
    exact = True

    def encode(self, value: Any, walk: Walk) -> Value:
        with value.mutex:
            items = [walk.child(str(i), item) for i, item in enumerate(value.queue)]
            return List(v=[*items, value.unfinished_tasks, value.maxsize])

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        kinds = {class_name(kind): kind for kind in _QUEUES}
        if not isinstance(payload, List) or len(payload.v) < 2 or cls not in kinds:
            return graft.refuse("is no queue.", twin)
        *nodes, unfinished, maxsize = payload.v
        if type(unfinished) is not int or type(maxsize) is not int:
            return graft.refuse("is no queue.", twin)
        own = type(twin) is kinds[cls] and graft.claim(twin)
        result: Any = twin if own else kinds[cls]()
        graft.register(result)
        items = [graft.value(str(i), node) for i, node in enumerate(nodes)]

        def fill() -> None:
            with result.mutex:
                result.queue.clear()
                result.queue.extend(items)
                result.unfinished_tasks = unfinished
                result.maxsize = maxsize
                result.not_empty.notify_all()

        graft.write(fill)
        return result


_QUEUES: tuple[type, ...] = (queue.Queue, queue.LifoQueue, queue.PriorityQueue)
_QUEUE = QueueCodec()

CODECS: dict[str, Codec] = {
    "array:array": ArrayCodec(),
    "_io:BytesIO": BufferCodec("io.BytesIO", io.BytesIO),
    "_io:StringIO": BufferCodec("io.StringIO", io.StringIO),
    "queue:Queue": _QUEUE,
    "queue:LifoQueue": _QUEUE,
    "queue:PriorityQueue": _QUEUE,
}
"""By class; derived classes are not meant."""

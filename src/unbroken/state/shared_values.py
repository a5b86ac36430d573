"""Codec for numbers that processes share: `multiprocessing.Value` and `multiprocessing.Array`.

A counter that all actors raise, or a difficulty that a curriculum sets for its workers, is one of these. It comes back in
its own memory, so that whoever shares it sees it.

Not promised: pointers and structures, which are said to be not captured, and memory of `ctypes` without a lock; a value
that the program does not have is not built. No lock is taken: at a save nobody may be writing, and a process that has
died may hold it for ever.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbroken.state.nodes import Dict, Value, class_name
from unbroken.state.policy import Codec

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_POINTERS = frozenset("zZPO")
"""Codes of simple types of C that name other memory."""


class SharedCodec:
    """One number or an array of them, filled in place."""

    name = "ctypes.values"
    mutable = True

    def encode(self, value: Any, walk: Walk) -> Value:
        numbers = _numbers(value)
        if numbers is not None:
            return Dict(v={"value": walk.child("value", numbers)})
        walk.note("not captured", class_name(type(value)))
        return Dict(v={})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None or class_name(type(twin)) != cls:
            return graft.refuse(f"{cls} was saved, and the program has another object here.", twin)
        if "value" not in payload.v:
            return twin
        own = _numbers(twin)
        graft.register(twin)
        if own is None or graft.value("value", payload.v["value"], own) is not own:
            return graft.refuse("is memory of another size or kind, which cannot be changed.", twin)
        return twin


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return the memory of a value as an array; None if it has other contents than numbers."""
    held: Any = value.get_obj() if hasattr(type(value), "get_obj") else value
    kind: Any = type(held)
    while issubclass(kind, ctypes.Array):
        kind = kind._type_
    if not issubclass(kind, ctypes._SimpleCData):
        return None
    simple: Any = kind
    if simple._type_ in _POINTERS:
        return None
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError):  # wide characters
        dtype = np.dtype(np.uint8)
    return np.frombuffer(held, dtype) if ctypes.sizeof(held) else np.empty(0, dtype)


CODECS: dict[str, Codec] = {
    "multiprocessing.sharedctypes:SynchronizedBase": SharedCodec(),
}
"""By class, those that are derived from it too."""

"""Finds NaN and infinity in the weights of a snapshot.

Of a module everything in its `state_dict` is looked at; of anything else that holds weights, every array.
What a module merely keeps beside it (a mask of minus infinity, made when it is first needed) is no weight.

Not promised: numbers of eight bits. And whether infinity is a fault, nobody can tell from the snapshot
alone: a constant may hold it from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unbroken.engine.changes import within
from unbroken.errors import CorruptObject
from unbroken.state import dtypes
from unbroken.state.nodes import Array, Coded, Dict, Ref, Tuple, Value
from unbroken.state.places import visit
from unbroken.state.snapshot import Component, Snapshot

WEIGHTS = ("policy_weights", "target_weights")
_TENSOR, _SHARD, _MEMORY = "torch.tensor", "torch.dtensor", "torch.memory"
_DTYPES = {
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "bfloat16": "<u2",
    "complex64": "<c8",
    "complex128": "<c16",
}
_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""Numbers of which a sum says nothing (numpy has no bfloat16, and float16 overflows at once): not finite is what
has every bit of the exponent set."""
BLOCK = 1 << 18
"""Values that are looked at together."""


def not_finite(snapshot: Snapshot) -> dict[str, str]:
    """Return the places of weights that hold NaN or infinity, each with its component."""
    return {
        place: name
        for name, component in snapshot.components.items()
        if name in WEIGHTS or component.tensors
        for place in _sick(component, all_arrays=name in WEIGHTS)
    }


def _sick(component: Component, *, all_arrays: bool) -> list[str]:
    """Return the places of what is not finite; without `all_arrays` only of what a module names as its own."""
    nodes = {place: node for root, value in component.roots.items() for place, node in visit(root, value)}
    weights = {place for table in component.tensors.values() for place in table.values()}
    # Of a distributed tensor it is this rank's shard that holds numbers.
    shards = {f"{place}/value/local": place for place in weights if _is_shard(nodes.get(place))}
    weights |= shards.keys()
    modules = component.tensors.keys()
    memories = {node.id: node for node in nodes.values() if isinstance(node, Coded) and node.k == _MEMORY}
    # The memory of tensors is looked at through them: it may hold what is no number of theirs.
    raw = {id(memory.v) for memory in memories.values()}
    return [
        shards.get(place, place)
        for place, node in nodes.items()
        if (place in weights or (all_arrays and not within(place, modules)))
        and id(node) not in raw
        and not _finite(node, component, memories)
    ]


def _is_shard(node: Value) -> bool:
    return isinstance(node, Coded) and node.k == _SHARD


def _finite(node: Value, component: Component, memories: dict[int, Coded]) -> bool:
    if isinstance(node, Array):
        dtype = dtypes.parse(node.d)
        return dtype.kind not in "fc" or _all_finite(_bytes(node, component).view(dtype))
    if not isinstance(node, Coded) or node.k != _TENSOR or not isinstance(node.v, Dict) or not node.v.v:
        return True
    fields = node.v.v
    name, memory = fields.get("dtype"), fields.get("memory")
    if isinstance(memory, Ref):
        memory = memories.get(memory.to)
    if name not in _DTYPES or not isinstance(memory, Coded) or not isinstance(memory.v, Array):
        return True
    return _all_finite(_values(fields, np.dtype(_DTYPES[str(name)]), _bytes(memory.v, component)), str(name))


def _all_finite(values: NDArray[Any], name: str = "") -> bool:
    """Whether no value is NaN or infinite. Looks at so many at a time that it needs no memory of their size."""
    exponent = _EXPONENTS.get(name or values.dtype.name)
    if exponent is not None:
        values = values.view(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in _blocks(values):
            if exponent is not None:
                if (block & exponent == exponent).any():
                    return False
            # NaN and infinity stay in a sum, which needs no memory of its own. Finite values may overflow.
            elif not np.isfinite(np.add.reduce(block)) and not np.isfinite(block).all():
                return False
    return True


def _blocks(values: NDArray[Any]) -> Iterable[NDArray[Any]]:
    """Yield all values, in the order in which they lie."""
    # Its stubs speak of what it yields without these flags.
    found: Any = np.nditer(values, ["external_loop", "buffered", "zerosize_ok"], buffersize=BLOCK)
    return cast("Iterable[NDArray[Any]]", found)


def _values(fields: dict[str, Value], dtype: np.dtype[Any], memory: NDArray[np.uint8]) -> NDArray[Any]:
    """Return a tensor's own numbers: others may lie in the same memory."""
    shape, strides, offset, rows = (fields.get(key) for key in ("shape", "strides", "offset", "rows"))
    sizes = _numbers(shape)
    if isinstance(rows, int) and sizes:
        sizes = (rows, *sizes[1:])
    steps = tuple(n * dtype.itemsize for n in _numbers(strides)) if strides is not None else None
    try:
        return np.ndarray(sizes, dtype, memory.data, int(offset) if isinstance(offset, int) else 0, steps)
    except (TypeError, ValueError) as error:
        raise CorruptObject(f"A tensor does not lie in its memory: {error}.") from error


def _numbers(node: Value) -> tuple[int, ...]:
    return tuple(n for n in node.v if isinstance(n, int)) if isinstance(node, Tuple) else ()


def _bytes(node: Array, component: Component) -> NDArray[np.uint8]:
    return component.content(node.b) if node.b >= 0 else np.frombuffer(node.data, np.uint8)

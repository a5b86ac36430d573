"""A component as plain JSON values, for people and programs that know nothing of Unbroken.

One way: what is no plain value is described, and nothing can be restored from it.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias, Union, cast

from unbroken.report.arrays import Arrays
from unbroken.report.tree import described
from unbroken.state.nodes import (
    Bytes,
    Coded,
    Deque,
    Dict,
    Float,
    Int,
    Link,
    List,
    Node,
    Object,
    Ref,
    Scope,
    Set,
    Tuple,
    Value,
    children,
)
from unbroken.state.snapshot import Component, Snapshot

Json: TypeAlias = Union[None, bool, int, float, str, "list[Json]", "dict[str, Json]"]


def plain(snapshot: Snapshot, name: str) -> Json:
    """Return the component `name`; its roots by their places."""
    component = snapshot.components[name]
    writer = _Plain(Arrays(snapshot))
    return {place: writer.value(value, component) for place, value in component.roots.items()}


class _Plain:
    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def value(self, value: Value, component: Component) -> Json:
        if not isinstance(value, Node):
            return value
        if isinstance(value, (Ref, Link)):
            return {"$": described(value)}
        if isinstance(value, Scope):
            inside = Component(component.name, value.roots, [component.blobs[i] for i in value.blobs])
            return {key: self.value(child, inside) for key, child in value.roots.items()}
        array = self._arrays.array(value, component)
        if array is not None:
            return _finite(array.numeric.tolist())
        if isinstance(value, Float):
            return value.v
        if isinstance(value, Int):
            return int(value.v, 16)
        if isinstance(value, Bytes):
            return value.v.hex()
        if isinstance(value, (List, Tuple, Set, Deque)):
            return [self.value(child, component) for child in value.v]
        if isinstance(value, Coded):
            return self.value(value.v, component)
        if isinstance(value, (Dict, Object)):
            return {key: self.value(child, component) for key, child in children(value) if child is not None}
        return {"$": described(value)}


def _finite(value: Any) -> Json:
    """Return nested lists, with NaN, infinities and what else JSON lacks (complex numbers, dates) as text."""
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[object]", value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return value if isinstance(value, (int, str)) else str(value)

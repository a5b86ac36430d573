"""What differs between two states, leaf by leaf.

Used after every restore (what was captured again against what was saved), between two starts of one
script (skeletons: every difference of configuration), and between two checkpoints. References are
compared by the place they lead to, never by number, so that one object more does not shift all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unbroken.state import dtypes
from unbroken.state.code import may_be_one_code
from unbroken.state.memory import same_bytes
from unbroken.state.nodes import (
    PLAIN,
    Array,
    Bytes,
    Function,
    Link,
    Node,
    Opaque,
    Packed,
    Ref,
    Scope,
    Value,
    View,
    children,
    escape,
)
from unbroken.state.parts import numbered_together, ranks_in
from unbroken.state.places import Index, index
from unbroken.state.snapshot import Bytes as Content
from unbroken.state.snapshot import Component, Snapshot

ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class LeafDifference:
    """One leaf that differs. `distance`: largest absolute difference, where both are numbers."""

    component: str
    place: str
    before: str
    after: str
    distance: float | None = None

    def __str__(self) -> str:
        far = "" if self.distance is None else f" (by up to {self.distance:.3g})"
        return f"{self.place}: {self.before} → {self.after}{far}"


@dataclass(frozen=True, slots=True)
class _Side:
    component: Component
    index: Index

    def bytes_of(self, node: Array | Packed | Bytes | Opaque | View) -> Content:
        inline = node.v if isinstance(node, Bytes) else node.data
        return self.component.content(node.b) if node.b >= 0 else np.frombuffer(inline, np.uint8)


class _Comparison:
    def __init__(
        self, component: str, a: _Side, b: _Side, *, contents: bool, common_rows: bool = False
    ) -> None:
        self.component = component
        self.a = a
        self.b = b
        self.contents = contents
        self.common_rows = common_rows

    def leaf(self, place: str, a: object, b: object, distance: float | None = None) -> LeafDifference:
        return LeafDifference(self.component, place, _shown(a), _shown(b), distance)

    def values(self, place: str, a: Value, b: Value) -> Iterator[LeafDifference]:
        if type(a) in PLAIN or type(b) in PLAIN:
            if not _same_plain(a, b):
                yield self.leaf(place, a, b, _scalar_distance(a, b))
            return
        assert isinstance(a, Node) and isinstance(b, Node)
        if isinstance(a, (Ref, Link)) and isinstance(b, (Ref, Link)):
            to_a, to_b = _target(a, self.a.index), _target(b, self.b.index)
            if to_a != to_b:
                yield self.leaf(place, f"the object at {to_a}", f"the object at {to_b}")
            return
        if type(a) is not type(b):
            yield self.leaf(place, a, b)
            return
        if isinstance(a, Scope):
            assert isinstance(b, Scope)
            yield from self.scopes(place, a, b)
            return
        if isinstance(a, (Array, Packed, Bytes, Opaque, View)):
            yield from self.contents_of(place, a, b)
        else:
            for name in _FIELDS.get(type(a).__name__, ()):
                if getattr(a, name) != getattr(b, name):
                    yield self.leaf(place, f"{name} {getattr(a, name)!r}", f"{name} {getattr(b, name)!r}")
            if isinstance(a, Function) and isinstance(b, Function) and not may_be_one_code(a.h, b.h):
                yield self.leaf(place, f"h {a.h!r}", f"h {b.h!r}")
        yield from self.below(place, a, b)

    def below(self, place: str, a: Any, b: Any) -> Iterator[LeafDifference]:
        left, right = dict(children(a)), dict(children(b))
        for key in [*left, *(k for k in right if k not in left)]:
            at = f"{place}/{escape(key)}"
            if key not in left or key not in right:
                here = left.get(key, right.get(key))
                gone = key not in right
                yield self.leaf(at, here if gone else ABSENT, ABSENT if gone else here)
            else:
                yield from self.values(at, left[key], right[key])

    def contents_of(self, place: str, a: Any, b: Any) -> Iterator[LeafDifference]:
        form_a, form_b = _form(a), _form(b)
        fewer = self.common_rows and _same_but_for_rows(a, b)
        if form_a != form_b and not fewer:
            yield self.leaf(place, a, b)
        elif self.contents:
            left, right = self.a.bytes_of(a), self.b.bytes_of(b)
            if fewer:
                both = min(left.size, right.size)
                left, right = left[:both], right[:both]
            if not same_bytes(left, right) and not _same_truth(a, left, right):
                yield self.leaf(place, a, b, _array_distance(a, left, right))

    def scopes(self, place: str, a: Scope, b: Scope) -> Iterator[LeafDifference]:
        # Another process has its own numbers and its own blobs.
        sides = []
        for scope, side in ((a, self.a), (b, self.b)):
            inner = Component(
                self.component, dict(scope.roots), [side.component.blobs[i] for i in scope.blobs]
            )
            sides.append(_Side(inner, index(Snapshot({inner.name: inner}))))
        inside = _Comparison(self.component, *sides, contents=self.contents, common_rows=self.common_rows)
        for key in {**a.roots, **b.roots}:
            at = f"{place}/{escape(key)}"
            if key in a.roots and key in b.roots:
                yield from inside.values(at, a.roots[key], b.roots[key])
            else:
                yield self.leaf(at, a.roots.get(key, ABSENT), b.roots.get(key, ABSENT))


_FIELDS: dict[str, tuple[str, ...]] = {
    "Float": ("v",),
    "Int": ("v",),
    "List": ("c",),
    "Tuple": ("c",),
    "Set": ("frozen", "c"),
    "Deque": ("m", "c"),
    "Dict": ("c",),
    "ObjectArray": ("s", "rows"),
    "Object": ("c",),
    "Coded": ("k", "c"),
    "Function": ("q",),
    "Method": ("n",),
    "Class": ("q",),
    "External": ("c",),
}
"""Fields compared beside what `children` yields and beside contents."""


def _target(node: Ref | Link, where: Index) -> str:
    return node.to if isinstance(node, Link) else where.place_of_number.get(node.to, f"#{node.to}")


def _same_but_for_rows(a: object, b: object) -> bool:
    """Whether both are arrays that differ at most in how many of their leading rows are there."""
    if not isinstance(a, Array) or not isinstance(b, Array) or a.rows == b.rows:
        return False
    return a.o == b.o == "C" and _form(a)[:-1] == _form(b)[:-1]


def _form(node: Array | Packed | Bytes | Opaque | View) -> tuple[object, ...]:
    if isinstance(node, View):
        return (node.d, tuple(node.s), node.of is None, node.off, tuple(node.st))
    if isinstance(node, Array):
        return (node.d, tuple(node.s), node.o if len(node.s) > 1 else "", node.rows)
    if isinstance(node, Packed):
        return (node.t, node.n)
    return (node.mutable,) if isinstance(node, Bytes) else (node.c,)


def _same_plain(a: Value, b: Value) -> bool:
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if isinstance(a, float) else a == b


def _same_truth(node: object, left: Content, right: Content) -> bool:
    """Whether both hold the same truth values: each is a byte, of which any but 0 is true. Memory that nobody has
    written yet has any, and PyTorch makes them 1 where it copies them."""
    if not isinstance(node, (Array, View)) or dtypes.parse(node.d).kind != "b":
        return False
    return bool(np.array_equal(left.view(np.uint8) != 0, right.view(np.uint8) != 0))


def _scalar_distance(a: Value, b: Value) -> float | None:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    return abs(float(a) - float(b)) if numbers else None  # type: ignore[arg-type]


def _array_distance(node: Any, left: Content, right: Content) -> float | None:
    if not isinstance(node, (Array, Packed, View)) or left.nbytes != right.nbytes:
        return None
    dtype = np.dtype(f"<{node.t}8") if isinstance(node, Packed) else dtypes.parse(node.d)
    if dtype.kind not in "fiub" or not left.nbytes:
        return None
    with np.errstate(all="ignore"):
        a, b = (x.view(dtype).astype(np.float64) for x in (left, right))
        gaps = np.abs(a - b)
    worst = float(np.max(np.where(np.isnan(gaps), np.inf, gaps)))
    return worst if not math.isnan(worst) else None


def _shown(value: object) -> str:
    if isinstance(value, Array):
        return f"{value.d}{list(value.s)}"
    if isinstance(value, Node):
        name = str(value.__struct_config__.tag)
        detail = getattr(value, "c", "") or getattr(value, "q", "") or getattr(value, "k", "")
        return f"{name} {detail}".rstrip()
    return value if value is ABSENT else repr(value)[:80]


def compare(
    a: Snapshot, b: Snapshot, *, contents: bool = True, common_rows: bool = False
) -> list[LeafDifference]:
    """Return every leaf that differs, in the order of `a`, then of what only `b` has.

    `contents=False` leaves array contents aside. With `common_rows`, of arrays of which not the same rows
    are there (a ring that was declared in another way since) those are compared that both have.
    """
    names = [*{**a.components, **b.components}]
    if ranks_in(names):
        return [
            found
            for group in numbered_together(names)
            for found in _compare(a, b, group, contents=contents, common_rows=common_rows)
        ]
    return _compare(a, b, names, contents=contents, common_rows=common_rows)


def _compare(
    a: Snapshot, b: Snapshot, names: list[str], *, contents: bool, common_rows: bool
) -> list[LeafDifference]:
    found: list[LeafDifference] = []
    index_a, index_b = (
        index(Snapshot({name: one.components[name] for name in names if name in one.components}))
        for one in (a, b)
    )
    empty = Component("")
    for name in names:
        left, right = a.components.get(name, empty), b.components.get(name, empty)
        sides = _Side(left, index_a), _Side(right, index_b)
        comparison = _Comparison(name, *sides, contents=contents, common_rows=common_rows)
        for place in {**left.roots, **right.roots}:
            if place in left.roots and place in right.roots:
                found.extend(comparison.values(place, left.roots[place], right.roots[place]))
            else:
                here = left.roots.get(place, right.roots.get(place))
                gone = place in left.roots
                found.append(comparison.leaf(place, here if gone else ABSENT, ABSENT if gone else here))
    return found

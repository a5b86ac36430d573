"""A component's tree, leaf by leaf, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unbroken.report.quantity import size
from unbroken.state.nodes import (
    Array,
    Bytes,
    Class,
    Coded,
    Dict,
    External,
    Float,
    Function,
    Int,
    Link,
    Node,
    Object,
    Opaque,
    Packed,
    Ref,
    Scope,
    Value,
    View,
    children,
    escape,
)
from unbroken.state.snapshot import Component

TEXT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Leaf:
    """A place and what stands there, in words."""

    place: str
    value: str


def leaves(component: Component) -> Iterator[Leaf]:
    """Yield every value of a component that is not only a holder of others, in the order of the walk."""
    stack: list[tuple[str, Value]] = list(reversed(component.roots.items()))
    while stack:
        place, value = stack.pop()
        below: list[tuple[str, Value]] = []
        if isinstance(value, Node):
            below = [(f"{place}/{escape(key)}", child) for key, child in children(value) if child is not None]
        if not below or isinstance(value, (View, Coded)):
            yield Leaf(place, described(value))
        if not isinstance(value, View):
            stack.extend(reversed(below))


def described(value: Value) -> str:
    """Return a value in a few words.

    >>> described(3)
    '3'
    """
    if isinstance(value, (Float, Int)):
        return value.v
    if isinstance(value, (Array, View)):
        return f"array {value.d} {list(value.s)}"
    if isinstance(value, Packed):
        return f"{value.n} numbers"
    if isinstance(value, Bytes):
        return f"bytes, {size(len(value.v))}"
    if isinstance(value, Coded):
        return f"{value.k} {value.c}".rstrip()
    if isinstance(value, Ref):
        return f"the same object as #{value.to}"
    if isinstance(value, Link):
        return f"the object at {value.to} ({value.in_})"
    if isinstance(value, External):
        return f"kept from outside: {value.c}"
    if isinstance(value, Opaque):
        return f"pickle of {value.c}"
    if isinstance(value, (Function, Class)):
        return value.q
    if isinstance(value, Scope):
        return f"state of process {value.p}"
    if isinstance(value, (Object, Dict)):
        return f"empty {value.c or 'dict'}"
    if isinstance(value, Node):
        return f"empty {value.__struct_config__.tag}"
    text = repr(value)
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"

"""Plain values (numbers, strings, tuples, lists, dicts of them) as nodes of a document and back. Pure.

What is not plain by this word is left to others: subclasses, objects, and containers that are met twice,
since their identity would be lost.
"""

from __future__ import annotations

import math
from typing import Any

from unbroken.errors import CorruptObject
from unbroken.state.nodes import Bytes, Dict, Float, Int, List, Tuple, Value

DEPTH = 50
"""Deeper values are not plain: nobody keeps options that way."""

_SMALL = 1 << 63


def is_plain(value: object, *, depth: int = DEPTH, met: set[int] | None = None) -> bool:
    """Whether `of_value` takes this value.

    >>> is_plain({"lr": 0.1, "betas": (0.9, 0.999)}), is_plain(object())
    (True, False)
    """
    met = set() if met is None else met
    if value is None or type(value) in (bool, int, str, bytes):
        return True
    if type(value) is float:
        return not math.isnan(value) or str(value) == "nan"
    if type(value) not in (tuple, list, dict) or not depth:
        return False
    if type(value) is not tuple:
        if id(value) in met:
            return False
        met.add(id(value))
    items: Any = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return all(is_plain(item, depth=depth - 1, met=met) for item in items)


def of_value(value: Any) -> Value:
    """Return the node of a plain value.

    >>> of_value((1, "a"))
    Tuple(v=[1, 'a'], c='', a={})
    """
    if isinstance(value, float) and not math.isfinite(value):
        return Float(v=str(value))
    if isinstance(value, int) and not isinstance(value, bool) and not -_SMALL <= value < _SMALL:
        return Int(v=hex(value))
    if isinstance(value, bytes):
        return Bytes(v=value)
    if isinstance(value, tuple):
        return Tuple(v=[of_value(item) for item in value])
    if isinstance(value, list):
        return List(v=[of_value(item) for item in value])
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return Dict(v={key: of_value(item) for key, item in value.items()})
        return Dict(kv=[(of_value(key), of_value(item)) for key, item in value.items()])
    plain: Value = value
    return plain


def value_of(node: Value) -> Any:
    """Return the plain value that a node stands for.

    Raises:
        CorruptObject: it stands for something else.
    """
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, Tuple) and not node.c and not node.a:
        return tuple(value_of(item) for item in node.v)
    if isinstance(node, List) and not node.c and not node.a:
        return [value_of(item) for item in node.v]
    if isinstance(node, Dict) and not node.c and not node.a:
        pairs = [(value_of(key), value_of(item)) for key, item in node.kv or ()]
        return {**dict(pairs), **{key: value_of(item) for key, item in (node.v or {}).items()}}
    if isinstance(node, Bytes) and node.b < 0 and not node.mutable:
        return node.v
    if isinstance(node, (Float, Int)):
        return _number(node)
    raise CorruptObject(f"A {type(node).__name__.lower()} stands where a plain value was written.")


def _number(node: Float | Int) -> float | int:
    try:
        if isinstance(node, Int):
            return int(node.v, 16)
        if node.v in ("inf", "-inf", "nan"):
            return float(node.v)
    except ValueError:
        pass
    raise CorruptObject(f"{node.v[:40]!r} is no number.")

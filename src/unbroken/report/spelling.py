"""How a place of a checkpoint is written in Python: attributes by a dot, entries of containers by their key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unbroken.state.nodes import Deque, Dict, Link, List, Node, Tuple, Value, children, unescape

Find = Callable[[str], Value]
"""Returns the root that stands at a place, None if none is known there."""
_MODULES = "_modules"


def spelled(place: str, find: Find) -> str:
    """Return the expression that leads to `place`. What nothing is known of is taken for an attribute, and so
    is a module among those of another, as torch lets it be reached."""
    keys = place.split("/")
    text = unescape(keys[0])
    for i, key in enumerate(keys[1:], 1):
        if key == _MODULES and keys[i + 1 : i + 2] and keys[i + 1].isidentifier():
            continue
        inside = key.isidentifier() and i > 1 and keys[i - 1] == _MODULES
        text += _step(None if inside else _node(keys[:i], find), unescape(key))
    return text


def _node(keys: Sequence[str], find: Find) -> Value:
    """Return what stands at a place, in whichever component, or None."""
    node = find(keys[0])
    for i, key in enumerate(keys[1:], 2):
        below = dict(children(node)).get(unescape(key)) if isinstance(node, Node) else None
        if isinstance(below, Link):
            below = find(below.to)
        node = find("/".join(keys[:i])) if below is None else below
    return node


def _step(node: Value, name: str) -> str:
    if isinstance(node, Dict) and name not in node.a:
        number = name[1:]
        if node.kv and name.startswith("#") and number.isdigit() and int(number) < len(node.kv):
            key = node.kv[int(number)][0]
            return f"[{name if isinstance(key, Node) else key!r}]"
        return f"[{name!r}]"
    if isinstance(node, (List, Tuple, Deque)) and name.isdigit():
        return f"[{name}]"
    return f".{name}" if name.isidentifier() else f"[{name!r}]"

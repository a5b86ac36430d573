"""Places and numbers of a snapshot's nodes, found in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from unbroken.state.nodes import Identity, Link, Ref, Scope, Value, children, escape, unescape
from unbroken.state.snapshot import Snapshot

Frame: TypeAlias = "tuple[Any, str] | None"
"""Where the walk stands: (frame of the parent, key). A place is joined only when it is needed."""


def place_of(frame: Frame) -> str:
    """Join a frame to a place."""
    keys: list[str] = []
    while frame is not None:
        frame, key = frame
        keys.append(escape(key))
    return "/".join(reversed(keys))


def frame_of(place: str) -> Frame:
    """Take a place apart again."""
    frame: Frame = None
    for key in place.split("/"):
        frame = (frame, unescape(key))
    return frame


@dataclass(slots=True)
class Index:
    """Where each node of a snapshot stands. Nodes inside a scope belong to their own process."""

    by_place: dict[str, tuple[str, Value]] = field(default_factory=dict)
    """Place -> (component, node), for nodes that links point to."""
    by_number: dict[int, Identity] = field(default_factory=dict)
    place_of_number: dict[int, str] = field(default_factory=dict)


def everything(snapshot: Snapshot) -> Iterator[tuple[str, Value]]:
    """Yield (place, value) for every node of a snapshot, scopes entered: those of worker processes too."""
    for component in snapshot.components.values():
        for root, node in component.roots.items():
            yield from visit(root, node, scopes=True)


def visit(place: str, value: Value, *, scopes: bool = False) -> Iterator[tuple[str, Value]]:
    """Yield (place, value) for a value and everything below it; `scopes` says whether these are entered."""
    stack: list[tuple[str, Value]] = [(place, value)]
    while stack:
        at, node = stack.pop()
        yield at, node
        if (
            node is None
            or isinstance(node, (bool, int, float, str))
            or (isinstance(node, Scope) and not scopes)
        ):
            continue
        stack.extend((f"{at}/{escape(key)}", child) for key, child in children(node) if child is not None)


def tables_of(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    """Return where each tensor stands that a module, or a root, has a name for: by the module's place and that name."""
    found = {
        (module, name): place
        for component in snapshot.components.values()
        for module, table in component.tensors.items()
        for name, place in table.items()
    }
    numbers: dict[int, str] | None = None
    for component in snapshot.components.values():
        for root, node in component.roots.items():
            if isinstance(node, Link) and node.to != root:
                found[root, ""] = node.to
            elif isinstance(node, Ref):
                numbers = index(snapshot).place_of_number if numbers is None else numbers
                found[root, ""] = numbers.get(node.to, "")
            elif "/" not in root:
                found[root, ""] = root
    return found


def last_key(place: str) -> str:
    """Return the last key of a place, as it was before it was escaped.

    >>> last_key("logger/values/time~1fps")
    'time/fps'
    """
    return place.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def index(snapshot: Snapshot) -> Index:
    """Index a snapshot."""
    found = Index()
    targets = {
        node.to
        for component in snapshot.components.values()
        for root, value in component.roots.items()
        for _, node in visit(root, value)
        if isinstance(node, Link)
    }
    for component in snapshot.components.values():
        for root, value in component.roots.items():
            for place, node in visit(root, value):
                if isinstance(node, Identity):
                    if node.id:
                        found.by_number[node.id] = node
                        found.place_of_number[node.id] = place
                    if place in targets:
                        found.by_place[place] = (component.name, node)
                elif place in targets and not isinstance(node, (Link, Ref)):
                    found.by_place[place] = (component.name, node)
    return found

"""What a person changed between two starts of a run, and what becomes of each change.

The birth document is the state at the start of training, without array contents. Captured at the same
point of every start, it differs from the first one in what the person changed, and in nothing else but
values that are drawn anew at each start. For every difference the three values (at birth, now, in the
checkpoint) are laid side by side and the source, which knows the framework, gives the verdict.

Not promised: that every change is seen. Array contents, edited methods of classes and settings read
only later do not show in the birth document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from unbroken.state.nodes import (
    Array,
    Bytes,
    Class,
    Coded,
    Deque,
    Dict,
    External,
    Float,
    Function,
    Int,
    Link,
    List,
    Method,
    Object,
    ObjectArray,
    Opaque,
    Packed,
    Partial,
    Ref,
    Scope,
    Set,
    Tuple,
    Value,
    View,
    children,
    escape,
)
from unbroken.state.places import index, last_key
from unbroken.state.snapshot import Component, Snapshot

LeafKind: TypeAlias = Literal["value", "callable", "structure"]


class Verdict(str, Enum):
    """What becomes of one change."""

    ERROR = "error"
    """The checkpoint cannot be restored into what the script built."""
    NEW_VALUE = "new value"
    """The script's value is used, and that is reported."""
    SAVED = "saved"
    """The checkpoint's value is used: it is no setting but a value that changes while training."""
    FRESH = "fresh"
    """Something that the checkpoint knows nothing of; it starts as the script built it."""


@dataclass(frozen=True, slots=True)
class BirthLeaf:
    """One entry of a state without contents. `text` is what people read, and what is compared."""

    component: str
    kind: LeafKind
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """One place where this start differs from the first; None where nothing stands there."""

    place: str
    component: str
    birth: BirthLeaf | None
    now: BirthLeaf | None
    saved: BirthLeaf | None

    @property
    def name(self) -> str:
        """The last key of the place."""
        return last_key(self.place)

    @property
    def untouched(self) -> bool:
        """Whether training left the value as it was at birth: then it is a setting."""
        return _text(self.saved) == _text(self.birth)

    @property
    def kind(self) -> LeafKind:
        """`structure` if either side is one."""
        kinds = [leaf.kind for leaf in (self.birth, self.now) if leaf is not None]
        if "structure" in kinds:
            return "structure"
        return "callable" if "callable" in kinds else "value"

    def __str__(self) -> str:
        return f"{self.place}: {_text(self.birth)} -> {_text(self.now)}"


def _text(leaf: BirthLeaf | None) -> str:
    return "nothing" if leaf is None else leaf.text


def usual_verdict(change: Change) -> Verdict:
    """Return the verdict where a source has no reason for another one.

    What training changed is state. What it left alone is a setting: of a value or a callable the new
    one wins, what was added starts fresh, and any other structure has to be as it was.
    """
    if not change.untouched:
        return Verdict.SAVED
    if change.kind != "structure":
        return Verdict.NEW_VALUE
    return Verdict.FRESH if change.birth is None else Verdict.ERROR


def find_changes(birth: Snapshot, now: Snapshot, saved: Snapshot) -> list[Change]:
    """Return every place at which `now` differs from `birth`, with what the checkpoint holds there.

    What the checkpoint holds already is left out. Of an object that is new, gone or of another class
    only the topmost place is returned.
    """
    before, after, kept = leaves(birth), leaves(now), leaves(saved)
    found: list[Change] = []
    whole: set[str] = set()
    for place in sorted({*before, *after}, key=lambda p: p.split("/")):
        a, b, c = before.get(place), after.get(place), kept.get(place)
        if _text(a) == _text(b):
            continue
        if any(ancestor in whole for ancestor in _ancestors(place)):
            continue
        if a is None or b is None or a.kind != b.kind or a.kind == "structure":
            whole.add(place)
        if _text(b) == _text(c):
            continue
        component = next(leaf.component for leaf in (b, a) if leaf is not None)
        found.append(Change(place, component, a, b, c))
    return found


def named(change: Change, names: Collection[str]) -> bool:
    """Return whether a person means this change: by its name, its place or a place above it."""
    return change.name in names or any(place in names for place in (change.place, *_ancestors(change.place)))


def within(place: str, places: Collection[str]) -> bool:
    """Return whether `place` is one of `places` or below one."""
    return place in places or any(ancestor in places for ancestor in _ancestors(place))


def _ancestors(place: str) -> Iterator[str]:
    while "/" in place:
        place = place.rpartition("/")[0]
        yield place


def leaves(snapshot: Snapshot) -> dict[str, BirthLeaf]:
    """Return what every place of a snapshot shows of itself, array contents apart."""
    found: dict[str, BirthLeaf] = {}
    numbers = index(snapshot).place_of_number
    for component in snapshot.components.values():
        for root, value in component.roots.items():
            _leaves(component.name, root, value, numbers, found)
    return found


def _leaves(
    component: str, place: str, value: Value, numbers: dict[int, str], found: dict[str, BirthLeaf]
) -> None:
    stack: list[tuple[str, Value]] = [(place, value)]
    while stack:
        at, node = stack.pop()
        if isinstance(node, Link) and node.to == at:
            continue  # another component opens here and tells what stands here
        found[at] = _leaf(component, node, numbers)
        if node is None or isinstance(node, (bool, int, float, str, Coded)):
            continue  # what a codec wrote is one leaf: only the codec knows what its parts mean
        if isinstance(node, Scope):
            inside = {f"{at}/{root}": child for root, child in node.roots.items()}
            inner = index(Snapshot({component: Component(component, inside)})).place_of_number
            for root, child in inside.items():
                _leaves(component, root, child, inner, found)
            continue
        stack.extend((f"{at}/{escape(key)}", child) for key, child in children(node))


def _leaf(component: str, node: Value, numbers: dict[int, str]) -> BirthLeaf:
    if node is None or isinstance(node, (bool, int, float, str)):
        return BirthLeaf(component, "value", repr(node))
    if isinstance(node, (Float, Int)):
        return BirthLeaf(component, "value", node.v)
    if isinstance(node, (Function, Method, Partial)):
        return BirthLeaf(component, "callable", _callable(node))
    if isinstance(node, Ref):
        return BirthLeaf(component, "structure", f"the same as {numbers.get(node.to, node.to)}")
    if isinstance(node, Link):
        return BirthLeaf(component, "structure", f"the same as {node.to}")
    if isinstance(node, Coded):
        text, whole = _payload(node.v)
        return BirthLeaf(component, "value" if whole else "structure", f"{node.c or node.k} {text}")
    return BirthLeaf(component, "structure", _structure(node))


def _callable(node: Function | Method | Partial) -> str:
    if isinstance(node, Function):
        return f"{node.q} {node.h}".rstrip()
    return f"method {node.n}" if isinstance(node, Method) else "partial"


def _payload(node: Value) -> tuple[str, bool]:
    """Return what a codec wrote, as text, and whether that is all of it (a value, no object with parts)."""
    if node is None or isinstance(node, (bool, int, float, str)):
        return repr(node), True
    if isinstance(node, (Float, Int)):
        return node.v, True
    if isinstance(node, Bytes):
        return node.v.hex(), node.b < 0
    if isinstance(node, Coded):
        return f"{node.c or node.k} {_payload(node.v)[0]}", False
    if isinstance(node, (Ref, Link)):
        return "", False
    if isinstance(node, (List, Tuple)):
        parts = [("", _payload(item)) for item in node.v]
    elif isinstance(node, Dict) and node.v is not None:
        parts = [(f"{key} ", _payload(item)) for key, item in node.v.items()]
    else:
        return _structure(node), False
    return f"({', '.join(key + text for key, (text, _) in parts)})", all(whole for _, (_, whole) in parts)


def _structure(node: Value) -> str:
    if isinstance(node, (Array, View)):
        return f"array {node.d} {list(node.s)}"
    if isinstance(node, ObjectArray):
        return f"array of objects {list(node.s)}"
    if isinstance(node, List):
        return f"list of {len(node.v)} {node.c}".rstrip()
    if isinstance(node, Packed):
        return f"list of {node.n}"
    if isinstance(node, Tuple):
        return f"tuple of {len(node.v)} {node.c}".rstrip()
    if isinstance(node, (Object, External, Opaque)):
        return node.c
    if isinstance(node, Class):
        return f"class {node.q}"
    if isinstance(node, Scope):
        return f"process {node.p}"
    if isinstance(node, Bytes):
        return "bytes"
    if isinstance(node, (Set, Deque)):
        return type(node).__name__.lower()
    assert isinstance(node, Dict)
    return "dict"

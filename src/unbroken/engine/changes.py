"""What a person changed between two starts of a run, and what becomes of each change.

The birth document is the state at the start of training, without array contents. Captured at the same
point of every start, it differs from the first one in what the person changed, and in nothing else but
values that are drawn anew at each start. For every difference the three values (at birth, now, in the
checkpoint) are laid side by side and the source, which knows the framework, gives the verdict.

Not promised: that every change is seen. Array contents, edited methods of classes and settings read
only later do not show in the birth document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from unbroken.state.code import may_be_one_code
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
    """One entry of a state without contents. `text` is all that shows of it, and what is compared."""

    component: str
    kind: LeafKind
    text: str
    shown: str = ""
    """A shorter form for people; empty if `text` is one."""
    code: str = ""
    """The hash of a function's code, compared too."""
    shape: tuple[int, ...] | None = None
    """Of arrays and tensors."""
    same_as: str = ""
    """The place of the object that this is a reference to."""
    has_attributes: bool = False
    """Whether what stands below are attributes, which its class decides on, and no items."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place where this start differs from the first; None where nothing stands there."""

    place: str
    component: str
    birth: BirthLeaf | None
    now: BirthLeaf | None
    saved: BirthLeaf | None
    new_attribute: bool = False
    """Whether it is an attribute that objects of its class did not have before: another version of the class has it."""

    @property
    def name(self) -> str:
        """The last key of the place."""
        return last_key(self.place)

    @property
    def untouched(self) -> bool:
        """Whether training left the value as it was at birth: then it is a setting."""
        return _alike(self.saved, self.birth)

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
    return "nothing" if leaf is None else f"{leaf.text} {leaf.code}".rstrip()


def _alike(a: BirthLeaf | None, b: BirthLeaf | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.text == b.text and may_be_one_code(a.code, b.code)


@runtime_checkable
class KnowsCauses(Protocol):
    """A source that knows which changes only follow from others."""

    def causes(self, found: Sequence[Change]) -> Sequence[Change]:
        """Return those that a person has made; the others are neither judged nor told."""
        ...


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
    before, after, kept = _Side(leaves(birth)), _Side(leaves(now)), _Side(leaves(saved))
    found: list[Change] = []
    whole: set[str] = set()
    places = {*before.leaves, *after.leaves, *_behind_references(before, after)}
    for place in sorted(places, key=lambda p: p.split("/")):
        a, b = before.leaves.get(place), after.leaves.get(place)
        if a is not None and b is not None and _alike(a, b):
            continue
        if any(ancestor in whole for ancestor in _ancestors(place)):
            continue
        # References are followed: two objects that are equal are as good as one that is met twice, and
        # a restore makes of both what they were in the checkpoint.
        a, b = before.seen(place), after.seen(place)
        if _alike(a, b) or ((a is None or b is None) and place.endswith(_BASE)):
            continue
        if a is None or b is None or a.kind != b.kind or a.kind == "structure":
            whole.add(place)
        c = kept.leaves.get(place) or kept.seen(place)
        if _alike(b, c):
            continue
        component = next(leaf.component for leaf in (b, a) if leaf is not None)
        new = a is None and c is None and _same_object(place.rpartition("/")[0], before, after, kept)
        found.append(Change(place, component, a, b, c, new))
    return found


def _same_object(place: str, *sides: _Side) -> bool:
    """Return whether an object with attributes, of one class, stands at `place` on all sides."""
    found = [side.seen(place) for side in sides]
    return (
        all(leaf is not None and leaf.has_attributes for leaf in found) and len(set(map(_text, found))) == 1
    )


class _Side:
    """One of the three states."""

    def __init__(self, found: dict[str, BirthLeaf]) -> None:
        self.leaves = found

    def behind(self, place: str) -> str:
        """Return where that what is seen at `place` stands itself, through all references on the way."""
        for _ in range(_LONGEST_WAY):
            for top in (place, *_ancestors(place)):
                leaf = self.leaves.get(top)
                if leaf is not None and leaf.same_as:
                    place = leaf.same_as + place[len(top) :]
                    break
            else:
                break
        return place

    def seen(self, place: str) -> BirthLeaf | None:
        """Return what is seen at `place`."""
        return self.leaves.get(self.behind(place))

    def below(self, place: str) -> set[str]:
        """Return the rest of every place below `place`, which is no reference."""
        return {at[len(place) :] for at in self.leaves if at.startswith(f"{place}/")}


_LONGEST_WAY = 64
_BASE = "/<base>"
"""The array that an array is a view into: one that was unpickled is one, and holds the same."""


def _behind_references(before: _Side, after: _Side) -> set[str]:
    """Return the places behind references that lead elsewhere now than they did at birth.

    Neither side has the object itself there, so what is in it would not be compared.
    """
    found: set[str] = set()
    for place, a in before.leaves.items():
        b = after.leaves.get(place)
        if b is not None and a.same_as and b.same_as and a.text != b.text:
            rest = before.below(before.behind(place)) | after.below(after.behind(place))
            found |= {place + end for end in rest}
    return found


ALIKE = (frozenset({"n_envs", "num_envs"}),)
"""Names that frameworks have for the same setting; a person may use any of them."""


def every_name(names: Collection[str]) -> frozenset[str]:
    """Return `names`, each with the others that mean the same."""
    found = set(names)
    for name in names:
        above, slash, last = name.rpartition("/")
        found |= {f"{above}{slash}{other}" for alike in ALIKE if last in alike for other in alike}
    return frozenset(found)


def made_later(
    places: Collection[str], birth: Snapshot | None, now: Snapshot, saved: Snapshot
) -> dict[str, str]:
    """Return which of these places stand in something that was saved, and that neither the first start of the script
    had, nor this one has: a training has made it. By each place, the topmost one of which that holds."""
    if birth is None or not places:
        return {}
    starts, end = (_Side(leaves(birth)), _Side(leaves(now))), _Side(leaves(saved))

    def is_there(side: _Side, place: str) -> bool:
        return _text(side.seen(place)) not in ("nothing", "None")

    def absent(place: str) -> bool:
        return is_there(end, place) and not any(is_there(side, place) for side in starts)

    found: dict[str, str] = {}
    for place in places:
        top = next((at for at in reversed([place, *_ancestors(place)]) if absent(at)), None)
        if (
            top is not None and "/" in top and last_key(top) != "value"
        ):  # that is inside of what a codec wrote
            found[place] = top
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
        if node is None or isinstance(node, (bool, int, float, str, Coded)) or _plain_items(node) is not None:
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
        code = node.h if isinstance(node, Function) else ""
        return BirthLeaf(component, "callable", _callable(node), shown=_name_of_callable(node), code=code)
    if isinstance(node, (Ref, Link)):
        place = numbers.get(node.to, str(node.to)) if isinstance(node, Ref) else node.to
        return BirthLeaf(component, "structure", f"the same as {place}", same_as=place)
    if isinstance(node, Coded):
        text, whole = _payload(node.v)
        shape = _shape_of(node)
        shown = _scalar(node) or (_shape(shape) if shape is not None else "")
        kind: LeafKind = "value" if whole else "structure"
        return BirthLeaf(component, kind, f"{node.c or node.k} {text}", shown=shown, shape=shape)
    items = _plain_items(node)
    if items is not None and isinstance(node, (List, Tuple)):
        opened, closed = "[]" if isinstance(node, List) else ("(", ",)" if len(items) == 1 else ")")
        shown = f"{opened}{', '.join(items)}{closed}"
        return BirthLeaf(component, "value", f"{node.c}{shown}", shown=shown)
    if isinstance(node, (Array, View, ObjectArray)):
        return BirthLeaf(component, "structure", _structure(node), shown=_shape(node.s), shape=node.s)
    text = _structure(node)
    named = isinstance(node, (Object, External, Opaque, Class))
    shown = text.rpartition(":")[2] if named else ""
    return BirthLeaf(component, "structure", text, shown=shown, has_attributes=isinstance(node, Object))


_MOST_ITEMS = 16


def _plain_items(node: Value) -> list[str] | None:
    """Return the texts of a short list or tuple that holds nothing but plain values: one setting."""
    if not isinstance(node, (List, Tuple)) or node.a or len(node.v) > _MOST_ITEMS:
        return None
    plain = all(item is None or isinstance(item, (bool, int, float, str, Float, Int)) for item in node.v)
    return [_payload(item)[0] for item in node.v] if plain else None


def _shape_of(node: Coded) -> tuple[int, ...] | None:
    """Return the shape that a codec of tensors wrote."""
    shape = node.v.v.get("shape") if isinstance(node.v, Dict) and node.v.v is not None else None
    sizes = shape.v if isinstance(shape, (Tuple, List)) else [shape]
    return tuple(n for n in sizes if isinstance(n, int)) if all(type(n) is int for n in sizes) else None


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _scalar(node: Coded) -> str:
    """Return a numpy scalar as people write it; empty for anything else."""
    parts = node.v.v if node.k == _NUMPY_SCALAR and isinstance(node.v, Dict) else None
    d, v = (parts or {}).get("d"), (parts or {}).get("v")
    if not isinstance(d, str) or not isinstance(v, Bytes) or v.b >= 0:
        return ""
    try:
        return str(np.frombuffer(v.v, np.dtype(d))[0])
    except (TypeError, ValueError, IndexError):
        return ""


_NUMPY_SCALAR = "numpy.scalar"


def _name_of_callable(node: Function | Method | Partial) -> str:
    if isinstance(node, Function):
        name = node.q.rpartition(":")[2].rpartition(".")[2]
        return "a lambda" if name == "<lambda>" else name
    return _callable(node)


def _callable(node: Function | Method | Partial) -> str:
    if isinstance(node, Function):
        return node.q
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

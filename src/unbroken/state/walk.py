"""Live objects to a state document, without pickle and without running code of the objects.

Each mutable object is written once, where it is first met. Attributes are visited in sorted order
(creation order differs between a run and its freshly built twin), dicts in their own order, so that a
walk over equal states meets everything at equal places. A component opens where an object of one of
its classes is first met; the document around it then holds a link.

Not promised: values created while the walk runs (it must be called at a clean point), attributes of
classes and globals of modules, attributes computed by `__getattr__`, and anything that a C extension
hides from its attributes; captors and the environment probe exist for those. Two small views of an array
that is not in the state come back as two arrays.
"""

from __future__ import annotations

import math
import pickle
import struct
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from unbroken.errors import NotCapturable
from unbroken.state import arrays
from unbroken.state.code import changing_parts, code_hash, function_name, partial_name
from unbroken.state.collector import no_garbage_collection
from unbroken.state.contents import holds_objects, items_of, members_of, slot_of
from unbroken.state.living import lost_with
from unbroken.state.lookup import ClassFacts, Kind, attributes_of, lookup
from unbroken.state.nodes import (
    INLINE_BYTES,
    PLAIN,
    Bytes,
    Class,
    Coded,
    Deque,
    Dict,
    External,
    Float,
    Function,
    Identity,
    Int,
    Link,
    List,
    Method,
    Object,
    Opaque,
    Packed,
    Partial,
    Ref,
    Set,
    Tuple,
    Value,
    class_name,
    escape,
)
from unbroken.state.places import Frame, place_of
from unbroken.state.policy import Policy
from unbroken.state.ring import Ledger, RingArray
from unbroken.state.snapshot import Component, Note, Snapshot
from unbroken.state.staging import own
from unbroken.state.stopwatch import Stopwatch
from unbroken.types import MISSING

PACK_FROM = 64
"""Lists of at least so many floats or ints are written as one array."""

DEEPEST = 100
"""Levels of nesting that are written. Reading takes more of Python's stack than writing, so the limit is
not left to it: what is saved can be restored."""

ROOT_COMPONENT = "training_state"
"""Component of roots whose class opens none."""


HOOK = "__unbroken_hook__"
"""Marks the class of what stands on an object only while it is watched."""


class _Seen(NamedTuple):
    keep: object  # alive while the walk runs, else its id could be used again
    node: Identity
    component: str
    frame: Frame


class Walk:
    """One walk. Codecs and captors get it to write what they hold."""

    def __init__(self, policy: Policy, *, contents: bool = True, ledger: Ledger | None = None) -> None:
        self.policy = policy
        self.contents = contents
        """False: a skeleton, in which the contents of arrays and generators are left out."""
        self.snapshot = Snapshot()
        self.callables: dict[str, object] = {}
        """Functions, classes and methods met, by name; a plan accepts no others."""
        self.classes: Counter[str] = Counter()
        self.rows: int | None = None
        """While inside a ring buffer's attribute: how many leading rows were ever written."""
        self.ring: tuple[object, str] | None = None
        """While there: the buffer, and the name of the attribute."""
        self.owners: dict[int, NDArray[Any]] = {}
        """By its identity, for a memory that has no name: the array that is written as its owner."""
        self._ledger = ledger
        self._lookup = lookup(policy)
        self._time = Stopwatch()
        self._component = self._open(ROOT_COMPONENT)
        self._base = ""
        self._seen: dict[Hashable, _Seen] = {}
        self._places: dict[str, object] = {}
        self._depth = 0
        self._numbers = 0
        self._at: Frame = None
        self._again: set[Hashable] = set()
        self._later: list[tuple[Component, Frame, Callable[[], None]]] = []
        self._last: list[tuple[Component, Frame, Callable[[], None]]] = []

    @property
    def place(self) -> str:
        """Where the walk stands."""
        return place_of(self._at)

    def note(self, kind: str, detail: str) -> None:
        """Say something about the present place."""
        self.snapshot.notes.append(Note(kind, self.place, detail))

    def blob(self, array: NDArray[Any]) -> int:
        """Add an array's bytes (C order) to the component and return the blob's index.

        They stay where they are, if they lie side by side there: see `Snapshot.is_live`.
        """
        if array.flags.c_contiguous:
            self._component.live.add(len(self._component.blobs))
        else:
            array = np.array(array, order="C", copy=True)
        return self.adopt(array.reshape(-1).view(np.uint8))

    def rows_of(
        self, holder: object, flat: NDArray[np.uint8], row_bytes: int, ring: tuple[object, str]
    ) -> int:
        """Add what has to be captured of a ring's array and return the blob's index, or -1.

        `flat` are the bytes of its written rows; -1 means that it is to be written like any array.
        """
        if self._ledger is None or flat.nbytes <= INLINE_BYTES:
            return -1
        number = len(self._component.blobs)
        owner, attribute = ring
        rows = self._ledger.rows(
            RingArray(owner, attribute, self.place, holder, flat, row_bytes, self._component.name, number)
        )
        if rows is None:
            return -1
        self._component.live.add(number)
        self._component.blobs.append(rows)
        return number

    def adopt(self, blob: NDArray[np.uint8]) -> int:
        """Add bytes that nobody else will write to, without a copy, and return the blob's index."""
        self._component.blobs.append(blob)
        return len(self._component.blobs) - 1

    def pack(self, array: NDArray[Any]) -> tuple[int, bytes]:
        """Return (blob index, b"") for a large array, (-1, bytes) for a small one. C order."""
        if not self.contents:
            return -1, b""
        if array.nbytes <= INLINE_BYTES:
            return -1, array.tobytes()
        return self.blob(array), b""

    def shared(self, name: str, key: Hashable, keep: object, make: Callable[[], Coded]) -> Value:
        """Write under `name` something that has an identity but is no Python object of its own (the
        memory of tensors). `keep` stays alive during the walk, so that `key` names nothing else."""
        met = self._met(("shared", key))
        if met is not None:
            return met
        outer, self._at = self._at, (self._at, name)
        try:
            node = make()
            self._seen["shared", key] = _Seen(keep, node, self._component.name, self._at)
        finally:
            self._at = outer
        return node

    def later(self, act: Callable[[], None], *, last: bool = False) -> None:
        """Have `act` called when everything has been met: for a node whose content depends on who else
        refers to it. Blobs that it adds go to the present component. An act that may meet something itself
        comes before those that are `last`."""
        (self._last if last else self._later).append((self._component, self._at, act))

    def met_again(self, value: object) -> bool:
        """Whether `value`, which was written, was met at another place too. For `later`."""
        return id(value) in self._again

    def here(self, value: object) -> Value:
        """Write `value` at the present place itself: for a codec whose payload is one other value."""
        return _plain(value) if type(value) in PLAIN else self._value(value, type(value))

    def met(self) -> Iterator[object]:
        """Yield every object with an identity that the walk has met."""
        return (seen.keep for seen in self._seen.values())

    def places(self) -> Iterator[tuple[object, Callable[[], str]]]:
        """Yield the same with what returns the place at which each was first met."""
        for seen in self._seen.values():
            yield seen.keep, partial(place_of, seen.frame)

    def object_at(self, place: str) -> object:
        """Return the object that was first met at `place`, or MISSING."""
        if not self._places:
            self._places = {place_of(seen.frame): seen.keep for seen in self._seen.values()}
        return self._places.get(place, MISSING)

    def first_met(self, value: object) -> str:
        """Return the place at which `value` was first met; empty if it was not."""
        seen = self._seen.get(id(value))
        return "" if seen is None else place_of(seen.frame)

    def attributes(self, value: object) -> dict[str, Value]:
        """Write the attributes and slots of an object whose content a codec writes."""
        return self._attributes(value, self._lookup.facts(type(value)))

    def child(self, key: str, value: object) -> Value:
        """Write `value`, which stands under `key` of what is being written.

        A codec's payload is a container whose keys are the ones it passes here, or a plain value; a
        captor writes its entry `k` under the key ``<k>``. Links find objects by these places.
        """
        kind = type(value)
        if kind in PLAIN:
            return _plain(value)
        if self._depth == DEEPEST:
            raise NotCapturable(
                f"{self.place} is nested more than {DEEPEST} levels deep, which cannot be saved.",
                hint="Keep long chains (a tree by its parents, a linked list) in a list or a dict.",
                place=self.place,
            )
        self._at = (self._at, key)
        self._depth += 1
        try:
            return self._value(value, kind)
        finally:
            self._depth -= 1
            self._at = self._at[0]

    def roots(self, roots: Mapping[str, object]) -> None:
        """Walk the roots in order."""
        self._time.switch(ROOT_COMPONENT)
        for key, value in roots.items():
            node = self.child(key, value)
            if not isinstance(node, Link) or node.to != escape(key):
                self._component.roots[escape(key)] = node
        self._settle()
        self._time.stop()
        self.snapshot.seconds.update(self._time.seconds)

    def _settle(self) -> None:
        """Do what waits for everything to be met."""
        outer = self._component
        for waiting in (self._later, self._last):
            for component, at, act in waiting:
                self._component, self._at = component, at
                self._time.switch(component.name)
                act()
            waiting.clear()
        self._component, self._at = outer, None

    def _open(self, name: str) -> Component:
        return self.snapshot.components.setdefault(name, Component(name))

    def _met(self, key: Hashable) -> Value:
        seen = self._seen.get(key)
        if seen is None:
            return None
        self._again.add(key)
        if seen.component != self._component.name:
            return Link(to=place_of(seen.frame), in_=seen.component)
        if not seen.node.id:
            self._numbers += 1
            seen.node.id = self._numbers
        return Ref(to=seen.node.id)

    def _keep(self, value: object, node: Identity) -> None:
        self._seen[id(value)] = _Seen(value, node, self._component.name, self._at)

    def _value(self, value: Any, kind: type) -> Value:
        met = self._met(id(value))
        if met is not None:
            return met
        facts = self._lookup.facts(kind)
        component = facts.component
        if component or (facts.structural and self.policy.component_keys):
            key = self._at[1] if self._at else ""
            base = facts.base or facts.name
            component = self.policy.component_keys.get(key, component) if facts.structural else component
            if component and component != self._component.name and base != self._base:
                return self._enter(component, base, value, facts)
            if component and key in self.policy.component_keys and component != self._component.name:
                return self._enter(component, base, value, facts)
        return _WRITERS[facts.kind](self, value, facts)

    def _enter(self, name: str, base: str, value: Any, facts: ClassFacts) -> Link:
        outer, outer_base = self._component, self._base
        self._component, self._base = self._open(name), base
        self._time.switch(name)
        try:
            place = self.place
            component = self._component
            # The root stands there before its inside is walked: inner roots come after outer ones.
            component.roots[place] = None
            component.roots[place] = _WRITERS[facts.kind](self, value, facts)
            if facts.tabled:
                self._table(place, self.policy.tables[facts.tabled](value))
        finally:
            self._component, self._base = outer, outer_base
            self._time.switch(outer.name)
        return Link(to=place, in_=name)

    def _table(self, module: str, tensors: Mapping[str, object]) -> None:
        for name, tensor in tensors.items():
            seen = self._seen.get(id(tensor))
            if seen is not None:
                owner = self.snapshot.components[seen.component]
                owner.tensors.setdefault(module, {})[name] = place_of(seen.frame)

    def _list(self, value: list[Any], facts: ClassFacts) -> Value:
        subclass = type(value) is not list
        if not subclass and len(value) >= PACK_FROM:
            packed = self._packed(value)
            if packed is not None:
                self._keep(value, packed)
                return packed
        node = List(v=[], c=facts.name if subclass else "")
        self._keep(value, node)
        node.v = [self.child(str(i), item) for i, item in enumerate(members_of(value))]
        node.a = self._attributes(value, facts) if subclass else {}
        return node

    def _packed(self, value: list[Any]) -> Packed | None:
        kinds = set(map(type, value))
        if kinds == {float}:
            array = np.array(value, dtype="<f8")
        elif kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63:
            array = np.array(value, dtype="<i8")
        else:
            return None
        b, data = self.pack(array)
        return Packed(t=array.dtype.kind, n=len(value), b=b, data=data)

    def _tuple(self, value: tuple[Any, ...], facts: ClassFacts) -> Value:
        items = [self.child(str(i), item) for i, item in enumerate(members_of(value))]
        if type(value) is tuple:
            return Tuple(v=items)
        return Tuple(v=items, c=facts.name, a=self._attributes(value, facts))

    def _set(self, value: Any, facts: ClassFacts) -> Value:
        frozen = isinstance(value, frozenset)
        plain = type(value) in (set, frozenset)
        node = Set(v=[], frozen=frozen, c="" if plain else facts.name)
        self._keep(value, node)
        node.v = [self.child(str(i), item) for i, item in enumerate(self._sorted(members_of(value)))]
        if not frozen and len(node.v) > 1:
            self.note(
                "approximate", "a set: its members come back, the order in which it yields them may not."
            )
        node.a = {} if plain else self._attributes(value, facts)
        return node

    def _sorted(self, members: Iterable[Any]) -> list[Any]:
        """Return the members of a set in an order that only what they hold decides."""
        return sorted(members, key=self._content)

    def _content(self, member: Any) -> tuple[str, bytes]:
        if type(member) in PLAIN:
            return type(member).__name__, repr(member).encode()
        aside = Walk(self.policy)
        node = aside.child("", member)
        aside._settle()
        parts = aside.snapshot.components.values()
        blobs = b"".join(part.content(i).tobytes() for part in parts for i in range(len(part.blobs)))
        return type(member).__qualname__, msgspec.msgpack.encode(node) + blobs

    def _deque(self, value: deque[Any], facts: ClassFacts) -> Value:
        plain = type(value) is deque
        node = Deque(v=[], m=value.maxlen, c="" if plain else facts.name)
        self._keep(value, node)
        node.v = [self.child(str(i), item) for i, item in enumerate(members_of(value))]
        node.a = {} if plain else self._attributes(value, facts)
        return node

    def _dict(self, value: dict[Any, Any], facts: ClassFacts) -> Value:
        node = Dict(c="" if type(value) is dict else facts.name)
        self._keep(value, node)
        if isinstance(value, defaultdict) and value.default_factory is not None:
            node.f = self.child("default_factory", value.default_factory)
        if all(type(key) is str for key, _ in items_of(value)):
            node.v = {key: self.child(key, item) for key, item in items_of(value)}
        else:
            node.kv = [
                (self.child(f"#{i}.key", key), self.child(f"#{i}", item))
                for i, (key, item) in enumerate(items_of(value))
            ]
        if node.c:
            node.a = self._attributes(value, facts)
        return node

    def _bytes(self, value: bytes | bytearray, facts: ClassFacts) -> Value:
        node = Bytes(mutable=isinstance(value, bytearray))
        # A view of a bytearray would keep its owner from making it longer.
        content = np.frombuffer(bytes(value) if node.mutable else value, np.uint8)
        node.b, node.v = self.pack(content) if value else (-1, b"")
        self._keep(value, node)
        return node

    def _coded(self, value: Any, facts: ClassFacts) -> Value:
        codec = facts.codec
        assert codec is not None
        node = Coded(k=codec.name, c=facts.name)
        if codec.mutable:
            self._keep(value, node)
        self._at = (self._at, "value")
        try:
            node.v = codec.encode(value, self)
        finally:
            self._at = self._at[0]
        return node

    def _class(self, value: Any, facts: ClassFacts) -> Value:
        name = class_name(value) if isinstance(value, type) else f"{value.__name__}:"
        self.callables.setdefault(name, value)
        return Class(q=name)

    def _function(self, value: Any, facts: ClassFacts) -> Value:
        node = Function(q=function_name(value))
        self._keep(value, node)
        if isinstance(value, types.FunctionType):
            node.h = code_hash(value.__code__)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:  # not assigned yet
                    continue
                node.cl[name] = self.child(f"<{name}>", content)
            node.a = {name: self.child(name, item) for name, item in changing_parts(value).items()}
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            node.of = self.child("__self__", owner)
        else:
            self.callables.setdefault(node.q, value)
        return node

    def _method(self, value: types.MethodType, facts: ClassFacts) -> Value:
        name = value.__func__.__name__
        self.callables.setdefault(f"{class_name(type(value.__self__))}.{name}", value)
        return Method(n=name, of=self.child("__self__", value.__self__))

    def _partial(self, value: partial[Any], facts: ClassFacts) -> Value:
        self.callables.setdefault(partial_name(value.func), value)
        node = Partial(f=None, a=None, k=None)
        self._keep(value, node)
        node.f = self.child("func", value.func)
        node.a = self.child("args", value.args)
        node.k = self.child("keywords", dict(value.keywords))
        return node

    def _external(self, value: Any, facts: ClassFacts) -> Value:
        node = External(c=facts.name)
        self._keep(value, node)
        unknown = None if facts.stateless else ("not captured", facts.name)
        self.note(*(lost_with(value) or unknown or ("external", facts.name)))
        return node

    def _object(self, value: Any, facts: ClassFacts) -> Value:
        self.classes[facts.name] += 1
        node = Object(c=facts.name)
        self._keep(value, node)
        captor = next((c for rule in self.policy.captors if (c := rule(value)) is not None), None)
        ring = next((r for rule in self.policy.rings if (r := rule(value)) is not None), {})
        if ring and self._ledger is not None:
            self._ledger.meet(value)
        only = None if captor is None else captor.attributes(value)
        node.a = self._instance(value, facts, only, ring)
        node.s = self._slots(value, facts, only)
        if captor is not None:
            node.x = captor.capture(value, self)
        return node

    def _attributes(self, value: Any, facts: ClassFacts) -> dict[str, Value]:
        """Write what an object of a built-in kind holds beside its content: attributes and slots."""
        return {**self._instance(value, facts), **self._slots(value, facts)}

    def _instance(
        self,
        value: Any,
        facts: ClassFacts,
        only: frozenset[str] | None = None,
        ring: Mapping[str, int] = types.MappingProxyType({}),
    ) -> dict[str, Value]:
        attributes = attributes_of(value, facts)
        found: dict[str, Value] = {}
        outer = self.rows, self.ring
        for name in sorted(attributes):
            if name in facts.skip or (only is not None and name not in only):
                continue
            if ring and _watches(value, name, attributes[name]):
                continue
            self.rows = ring.get(name)
            self.ring = (value, name) if name in ring else None
            found[name] = self.child(name, attributes[name])
        self.rows, self.ring = outer
        return found

    def _slots(self, value: Any, facts: ClassFacts, only: frozenset[str] | None = None) -> dict[str, Value]:
        return {
            name: self.child(name, held)
            for name in facts.slots
            if name not in facts.skip and (only is None or name in only)
            if (held := slot_of(value, name)) is not MISSING
        }

    def _opaque(self, value: Any, facts: ClassFacts) -> Value:
        try:
            data = pickle.dumps(value, protocol=5)
        except Exception as error:  # noqa: BLE001 - whatever a foreign __reduce__ raises is named, not hidden
            self.note("not captured", f"{facts.name}: {error}")
            node: External | Opaque = External(c=facts.name)
        else:
            self.note("opaque", facts.name)
            if holds_objects(value):
                self.note("approximate", f"{facts.name}: what it shares with others comes back twice.")
            b, inline = self.pack(np.frombuffer(data, np.uint8))
            node = Opaque(c=facts.name, b=b, data=inline)
        self._keep(value, node)
        return node


def _watches(ring: object, name: str, value: object) -> bool:
    """Whether an attribute of a ring counts its rows for the ledger, or is the method that a copy has in its place."""
    if isinstance(value, types.MethodType) and value.__self__ is ring:
        return value.__func__ is getattr(type(ring), name, None)
    return getattr(type(value), HOOK, False)


def _plain(value: Any) -> Value:
    if type(value) is float and not math.isfinite(value):
        if math.isinf(value):
            return Float(v="inf" if value > 0 else "-inf")
        bits = struct.pack(">d", value).hex()
        return Float(v="nan" if bits == "7ff8000000000000" else bits)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return Int(v=hex(value))
    return value  # type: ignore[no-any-return]


_WRITERS: dict[Kind, Callable[[Walk, Any, ClassFacts], Value]] = {
    Kind.LIST: Walk._list,
    Kind.TUPLE: Walk._tuple,
    Kind.SET: Walk._set,
    Kind.DEQUE: Walk._deque,
    Kind.DICT: Walk._dict,
    Kind.BYTES: Walk._bytes,
    Kind.ARRAY: arrays.write,
    Kind.CODED: Walk._coded,
    Kind.CLASS: Walk._class,
    Kind.FUNCTION: Walk._function,
    Kind.METHOD: Walk._method,
    Kind.PARTIAL: Walk._partial,
    Kind.EXTERNAL: Walk._external,
    Kind.OBJECT: Walk._object,
    Kind.OPAQUE: Walk._opaque,
}


def walk(
    roots: Mapping[str, object], policy: Policy, *, contents: bool = True, ledger: Ledger | None = None
) -> Walk:
    """Walk `roots` and return the walk itself, for those who need the callables it met.

    Its snapshot still lies in live memory; see `Snapshot.is_live`. With a `ledger`, of rings only what has
    changed is in it.
    """
    walk = Walk(policy, contents=contents, ledger=ledger)
    with no_garbage_collection():
        walk.roots(roots)
    return walk


def capture(roots: Mapping[str, object], policy: Policy, *, contents: bool = True) -> Snapshot:
    """Return the state below `roots` as a true snapshot: nothing in it is shared with live objects.

    `contents=False` leaves out the contents of arrays and generators (a skeleton).
    Raises NotCapturable for what can be neither saved nor kept from a freshly built twin.
    """
    return own(walk(roots, policy, contents=contents).snapshot)

"""A saved state laid over freshly built objects: first a plan that touches nothing, then its writes.

At each place the twin's own object is used if its class fits and no other saved object has taken it;
otherwise a new one is built. One rule serves environment wrappers and info dicts alike: what decides is
the place, not the class. Objects of structural classes (modules, environments, …) are never built.

Security: no code comes from a document. Functions, classes and methods are only ever ones that the
twin holds; a class may be built only if it is loaded already, from a trusted package, and has no
`__del__`; pickles are refused unless the caller trusts the checkpoint. Not promised: that hostile
attribute values do no harm in a library's own later code.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import CorruptObject, InternalError, StateMismatch
from unbroken.state.code import PARTIAL
from unbroken.state.lookup import ClassFacts, Kind, lookup
from unbroken.state.memory import ALONE, bytes_of, copy_array, move
from unbroken.state.nodes import (
    PLAIN,
    AnyNode,
    Coded,
    Identity,
    Link,
    Node,
    Object,
    Ref,
    Value,
    class_name,
    escape,
    same,
)
from unbroken.state.pickles import Trust
from unbroken.state.places import Frame, frame_of, index, place_of, tables_of
from unbroken.state.planning.growth import Growth
from unbroken.state.planning.objects import plan_attributes
from unbroken.state.planning.table import PLANNERS
from unbroken.state.planning.values import holds_values_alone
from unbroken.state.policy import Phase, Policy
from unbroken.state.snapshot import Blob, Bytes, Rows, Snapshot
from unbroken.state.walk import Walk, walk
from unbroken.types import MISSING

TRUSTED = frozenset({"numpy", "collections", "__main__"})
"""Top-level packages whose classes may always be built."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a plan found. `level`:

    - error: the checkpoint does not fit; nothing may be applied
    - changed: the program's new version stays (a function with other code)
    - stays: what the program calls stays, where something else was saved that no document may bring
    - moved: what "changed" says of a tensor's device, for every further tensor; nobody is told
    - kept: a setting that the caller asked to keep from the twin
    - replaced: an array of another shape or dtype took the twin's place
    - removed: the twin has an attribute that the saved object no longer had
    - lost: saved, kept from outside, and absent in the twin
    - forgotten: the same, of something that belonged to the run
    - untrusted: a pickle that was not loaded, because the checkpoint is not trusted
    - fresh: the twin has a root that was not saved; it stays as it is
    """

    level: str
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}"


class Graft:
    """The plan. Made by `plan`; codecs and captors get it to register their part."""

    def __init__(
        self, saved: Snapshot, policy: Policy, twin: Walk, *, keep: Collection[str], trusted: Trust
    ) -> None:
        self.saved = saved
        self.policy = policy
        self.trusted = trusted
        self.differences: list[Difference] = []
        self.built: Counter[str] = Counter()
        """Classes of which new objects are built, with how many."""
        self.adopted: dict[tuple[str, int], str] = {}
        """Blobs whose memory becomes part of the live state: component and number -> place."""
        self.growth = Growth(saved, twin)
        self.remaking = False
        """Whether the plan stands in an object for which a training may have put another one."""
        self._twin = twin
        self._homes: dict[str, object] | None = None
        self._at_home: set[int] = set()
        self._callables: Mapping[str, object] = twin.callables
        self._lookup = lookup(policy)
        self._index = index(saved)
        self._keep = frozenset(keep)
        self._trust = self._trusted_packages(twin)
        self._objects: dict[int, object] = {}
        self._taken: dict[int, object] = {}
        self._writes: list[tuple[Phase, Callable[..., object], tuple[object, ...]]] = []
        self._component = ""
        self._node: Node | None = None
        self._at: Frame = None

    @property
    def place(self) -> str:
        """Where the plan stands."""
        return place_of(self._at)

    @property
    def errors(self) -> list[Difference]:
        """What keeps this plan from being applied."""
        return [d for d in self.differences if d.level == "error"]

    def error(self, detail: str) -> None:
        """Say that the checkpoint does not fit here."""
        self.note("error", detail)

    def note(self, level: str, detail: str) -> None:
        """Say something about the present place; see Difference for the levels."""
        self.differences.append(Difference(level, self.place, detail))

    def note_at(self, key: str, level: str, detail: str) -> None:
        """Say something about what stands under `key` of the present place."""
        self.differences.append(Difference(level, place_of((self._at, key)), detail))

    def refuse(self, detail: str, twin: object) -> Any:
        """Say that the checkpoint does not fit here, and return something to go on planning with."""
        self.error(detail)
        return None if twin is MISSING else twin

    def write(self, function: Callable[..., object], *args: object, phase: Phase = Phase.WRITE) -> None:
        """Have `function(*args)` called by `apply`."""
        self._writes.append((phase, function, args))

    def fill(self, target: NDArray[Any], b: int, content: NDArray[Any]) -> None:
        """Have the values of a live array written: `content`, which lies in blob `b` if that is one.

        A large blob that may be taken over is moved there, and afterwards what the array holds is the blob.
        """
        into = bytes_of(target) if target.flags.c_contiguous == content.flags.c_contiguous else None
        if into is not None and into.nbytes > ALONE and self.adoption(b)():
            self.write(_move_blob, self.saved.components[self._component].blobs, b, into)
        else:
            self.write(copy_array, target, content)

    def bytes_of(self, b: int, data: bytes) -> Bytes:
        """Return the bytes that `Walk.pack` wrote. Read-only: copy what becomes part of the live state."""
        if b < 0:
            return np.frombuffer(data, np.uint8)
        component = self.saved.components[self._component]
        if b >= len(component.blobs):
            raise CorruptObject(
                f"{self.place} names blob {b} of {len(component.blobs)} in {self._component}."
            )
        return component.content(b)

    def adoption(self, b: int) -> Callable[[], bool]:
        """Return a function that takes the memory of blob `b` over for the live state, if that is allowed: once,
        and where the snapshot says so. It returns whether it did."""
        # Without the graft in it: a cycle would keep all that was loaded until the next garbage collection.
        adopted, key, place = self.adopted, (self._component, b), self.place
        allowed = self.saved.adoptable and b >= 0

        def adopt() -> bool:
            if not allowed or key in adopted:
                return False
            adopted[key] = place
            return True

        return adopt

    def claim(self, twin: object) -> bool:
        """Take the twin's object for the present place. False if another saved object has taken it."""
        if twin is MISSING or id(twin) in self._taken:
            return False
        self._taken[id(twin)] = twin
        return True

    def is_owner(self, twin: object, memory: object) -> bool:
        """Whether the walk over the twin has taken an array for the owner of a memory that is another's."""
        return self._twin.owners.get(id(memory)) is twin

    def register(self, value: object) -> None:
        """Make `value` the object of the coded value being planned, for references from inside it."""
        if self._node is not None:
            self._objects[id(self._node)] = value

    def planned(self) -> object:
        """Return the object of the coded value being planned if a reference from inside it, which came before
        it was there, has had it planned; else MISSING."""
        return self._objects.get(id(self._node), MISSING)

    def bind(self, node: Node, value: Any) -> Any:
        """Make `value` the object of `node`, for references to it, and return it."""
        self._objects[id(node)] = value
        return value

    def use(self, node: Node, twin: object, *, fits: bool) -> Any:
        """Return the twin's object, bound to `node`, if it fits and is free; else MISSING."""
        return self.bind(node, twin) if fits and self.claim(twin) else MISSING

    def is_structural(self, value: object) -> bool:
        """Whether a value is an object that is never built."""
        return self.facts(type(value)).structural

    def is_part(self, cls: type) -> bool:
        """Whether objects of a class are never built, and are listed where they are in use: parameters."""
        facts = self.facts(cls)
        return facts.structural and facts.kind is Kind.CODED

    def grows(self, value: Value) -> bool:
        """Whether something saved is of a class whose objects are built where the program has nothing."""
        node = self._target(value)
        cls = self.loaded_class(node.c, MISSING) if isinstance(node, Object) else None
        return cls is not None and self.growth.allows(self.facts(cls))

    def grows_below(self, key: str) -> bool:
        """Whether what stands under `key` of the present place belongs to something that is built."""
        return self.growth.belongs_to_grown(place_of((self._at, key)))

    def known_elsewhere(self, node: Object) -> object:
        """Return the program's object for a grown one that the program has at another place; else MISSING."""
        if not self.grows(node):
            return MISSING
        return self.use(node, found := self.growth.known_as(self, node), fits=found is not MISSING)

    def _target(self, value: Value) -> object:
        if isinstance(value, Ref):
            return self._index.by_number.get(value.to)
        return self._index.by_place.get(value.to, ("", None))[1] if isinstance(value, Link) else value

    def home_below(self, key: str) -> object:
        """Return the program's object whose home is that of what was saved under `key` of the present place, or
        MISSING."""
        return self._home(place_of((self._at, key)))

    def has_home(self, value: object) -> bool:
        """Whether an object of the program is found at another place than below the present one."""
        first = self._twin.first_met(value)
        self._all_homes()
        return not first.startswith(f"{self.place}/") or id(value) in self._at_home

    def _home(self, place: str) -> object:
        """Return the object of the program that has the name in its module, or the root, of what stands at `place`
        of the saved state; MISSING if that has no such name, or the program nothing there."""
        return self._all_homes().get(place, MISSING) if self.policy.remade else MISSING

    def _all_homes(self) -> dict[str, object]:
        if self._homes is None:
            self._homes = {}
            now = tables_of(self._twin.snapshot)
            for (module, name), place in tables_of(self.saved).items():
                found = self._twin.object_at(now.get((module, name), ""))
                if found is not MISSING:
                    self._homes.setdefault(place, found)
                    self._at_home.add(id(found))
        return self._homes

    def held(self, name: str) -> object:
        """Return the function, method, partial or class of this name that the program holds, or None.

        A policy may declare functions that the program comes to hold only later.
        """
        if name in self._callables:
            return self._callables[name]
        if name.removeprefix(PARTIAL) in self.policy.functions:
            module, _, function = name.removeprefix(PARTIAL).partition(":")
            return vars(sys.modules.get(module, types)).get(function)
        return None

    def keeps(self, key: str) -> bool:
        """Whether the caller asked to keep what the twin has under `key` of the present place."""
        return bool(self._keep) and place_of((self._at, key)) in self._keep

    def kept_below(self, place: str) -> list[str]:
        """Return the places that the caller asked to keep below `place`, relative to it."""
        return [kept[len(place) + 1 :] for kept in self._keep if kept.startswith(f"{place}/")]

    def finished(self, key: str, node: Value) -> Any:
        """Plan and build something new whole, so that it can be hashed: a dict's key, a set's member.

        Its writes are executed at once. They touch nothing live: what stands here has no twin.
        """
        outer, self._writes = self._writes, []
        try:
            value = self.value(key, node)
            if not self.errors:
                for _, function, args in sorted(self._writes, key=lambda w: w[0]):
                    function(*args)
            return value
        finally:
            self._writes = outer

    def here(self, node: Value, twin: object = MISSING) -> Any:
        """Plan a value at the present place: for a codec whose payload is one other value."""
        if type(node) not in PLAIN:
            return self._plan(node, twin)  # type: ignore[arg-type]
        if type(twin) not in PLAIN and self.facts(type(twin)).structural:
            # A plain value would take the place of a network or an environment without a word.
            self.error(f"{node!r:.60} was saved and the program has {_kind_of(twin)} here.")
        return node

    def value(self, key: str, node: Value, twin: object = MISSING) -> Any:
        """Plan what stands under `key`, over the twin's object there; return the object to use. MISSING: what was
        saved there is left out, as the caller asked, and the program has nothing there."""
        self._at = (self._at, key)
        try:
            if self._keep and self.place in self._keep:
                return self._kept(node, twin)
            planned = self.here(node, twin)
            if planned is MISSING:
                self.note("kept", "refers to what is left out.")
            return planned
        finally:
            self._at = self._at[0]

    def loaded_class(self, name: str, twin: object) -> type | None:
        """Return the class of this name if it is loaded; nothing is ever imported."""
        if self.facts(type(twin)).name == name:
            return type(twin)
        held = self.growth.like(name)
        if held is not MISSING:
            return type(held)
        module, _, qualname = name.partition(":")
        found: Any = sys.modules.get(module)
        for part in qualname.split("."):
            found = getattr(found, "__dict__", {}).get(part) if found is not None else None
        return found if isinstance(found, type) else None

    def buildable_class(self, name: str, twin: object) -> type | None:
        """Return the class of this name if objects of it may be built; otherwise say why not."""
        found = self.loaded_class(name, twin)
        if found is None:
            self.error(f"the class {name} is not loaded.")
            return None
        package = found.__module__.partition(".")[0]
        facts = self.facts(found)
        if facts.structural and not self.growth.allows(facts):
            self.error(f"{name} was saved and the program has {_kind_of(twin)} here.")
        elif (
            package not in self._trust
            or class_name(found) != name
            or hasattr(found, "__del__")
            or issubclass(found, type)
        ):
            self.error(f"{name} would have to be built, and is not of a trusted package.")
        else:
            self.built[name] += 1
            return found
        return None

    def may_stand_for(self, node: Object, twin: object) -> bool:
        """Whether an object of the class of `node` is built where the program has `twin`, which can be called: what a
        training has put there, another schedule or noise. Only of a class that the program uses, or that stands
        beside its own, and which holds values alone: what is called here is called with what the program gives it, and a
        document must not choose what that leads to."""
        found = self.loaded_class(node.c, MISSING)
        if found is None or self.is_structural(twin) or self.facts(found).structural:
            return False
        beside = found.__module__ in (type(twin).__module__, "__main__")
        known = node.c in self._twin.classes or (
            beside and type(twin).__module__ not in sys.stdlib_module_names
        )
        if not known or hasattr(found, "__del__") or not holds_values_alone(node):
            return False
        return issubclass(found, Callable)  # type: ignore[arg-type]

    def attributes(self, saved: Mapping[str, Value], owner: object) -> None:
        """Plan what `Walk.attributes` wrote, for an owner that is new."""
        plan_attributes(self, saved, owner, mine=False)

    def facts(self, cls: type) -> ClassFacts:
        """Return what the policy says of a class."""
        return self._lookup.facts(cls)

    def roots(self, roots: Mapping[str, object]) -> None:
        """Plan every root, in the order of the walk."""
        saved: dict[str, tuple[str, Value]] = {}
        below: dict[str, tuple[str, Value]] = {}
        for component in self.saved.components.values():
            for place, node in component.roots.items():
                (below if "/" in place else saved)[place] = (component.name, node)
        # Links lead to what stands below a root, unless the component of that root was not saved, or not for us.
        below = {at: found for at, found in below.items() if at.partition("/")[0] not in saved}
        for key, twin in roots.items():
            place = escape(key)
            if place not in saved:
                self.differences.append(Difference("fresh", place, "was not saved and stays as built."))
                continue
            self._component, node = saved.pop(place)
            planned = self.value(key, node, twin)
            if not same(planned, twin) and type(twin) not in PLAIN and planned is not twin:
                self.differences.append(
                    Difference("error", place, f"{_kind_of(twin)} cannot take what was saved.")
                )
        for place, (component_name, node) in below.items():
            twin = self._twin.object_at(place)
            if twin is MISSING:
                saved[place] = component_name, node
            else:
                self._across(component_name, cast("AnyNode", node), frame_of(place), twin)
        for place in saved:
            self.differences.append(Difference("lost", place, "was saved and has no counterpart."))

    def apply(self) -> None:
        """Execute the writes: simulators first, generators last. Raises StateMismatch if there are errors."""
        if self.errors:
            raise StateMismatch(
                "The checkpoint does not fit what this script has built.",
                hint="Start with the settings of the checkpoint, or use another run directory.",
                differences=[str(d) for d in self.errors],
            )
        writes = sorted(self._writes, key=lambda w: w[0])
        if any(phase is Phase.OWNERS for phase, _, _ in writes):
            writes += [write for write in writes if write[0] is Phase.GENERATORS]
        for _, function, args in writes:
            function(*args)
        self._writes.clear()

    def _trusted_packages(self, twin: Walk) -> frozenset[str]:
        own = {name.partition(":")[0].partition(".")[0] for name in twin.classes}
        return (TRUSTED | self.policy.trusted | own) - (set(sys.stdlib_module_names) - TRUSTED)

    def _kept(self, node: Value, twin: object) -> Any:
        self.note("kept", "the program's new value stays.")
        if isinstance(node, Identity):
            # Where the program has nothing, what refers to it from elsewhere is left out, too.
            self._objects[id(node)] = MISSING if twin is None else twin
        return twin

    def _plan(self, node: AnyNode, twin: object) -> Any:
        if isinstance(node, Ref):
            target = self._index.by_number.get(node.to)
            place = self._index.place_of_number.get(node.to, f"number {node.to}")
            return self._referred(self._component, target, place, twin)
        if isinstance(node, Link):
            component, found = self._index.by_place.get(node.to, ("", None))
            if node.to == self.place and isinstance(found, Node) and not isinstance(found, Ref):
                return self._across(component, found, self._at, twin)
            return self._referred(component, found, node.to, twin)
        if id(node) in self._objects:  # a reference that came before it has had it planned
            return self._objects[id(node)]
        if isinstance(node, Coded):
            return self._coded(node, twin)
        planner = PLANNERS.get(type(node))
        if planner is None:
            raise InternalError(f"no planner for {type(node).__name__}")
        return planner(self, node, twin)

    def _referred(self, component: str, target: object, place: str, twin: object) -> Any:
        if target is not None and id(target) in self._objects:
            return self._objects[id(target)]
        if self._keep and twin is not MISSING:
            return twin  # it was first met below a setting that the program keeps
        if self._keep and any(place == kept or place.startswith(f"{kept}/") for kept in self._keep):
            return MISSING
        if isinstance(target, Identity) and not isinstance(target, (Ref, Link)):
            # A view may refer to an array that is met only after it: that is planned now, over the
            # twin's object at its own place. Where the program has its roots in another order it is
            # first met here.
            there = self._home(place)
            if there is MISSING:
                there = self._twin.object_at(place)
            return self._across(
                component, cast("AnyNode", target), frame_of(place), twin if there is MISSING else there
            )
        return self.refuse(f"refers to {place}, where nothing stands.", twin)

    def _across(self, component: str, target: AnyNode, at: Frame, twin: object) -> Any:
        outer = self._component, self._at, self.remaking
        here = at is self._at
        self._component, self._at, self.remaking = component, at, False
        try:
            if here:
                return self._plan(target, twin)
            with self.growth.elsewhere(grows=False):
                return self._plan(target, twin)
        finally:
            self._component, self._at, self.remaking = outer

    def _coded(self, node: Coded, twin: object) -> Any:
        codec = self._lookup.codecs.get(node.k)
        if codec is None:
            return self.refuse(f"was written by {node.k}, which is not there.", twin)
        outer, self._node = self._node, node
        self._at = (self._at, "value")
        try:
            value = codec.plan(node.v, node.c, twin, self)
        finally:
            self._node = outer
            self._at = self._at[0]
        self._objects[id(node)] = value
        return value


def _move_blob(blobs: list[Blob], b: int, into: Bytes) -> None:
    source = blobs[b]
    assert not isinstance(source, Rows)
    move(into, source)
    blobs[b] = into


def _kind_of(twin: object) -> str:
    if twin is MISSING:
        return "nothing"
    return "None" if twin is None else f"{type(twin).__module__}:{type(twin).__qualname__}"


def plan(
    saved: Snapshot,
    roots: Mapping[str, object],
    policy: Policy,
    *,
    keep: Collection[str] = (),
    trusted: Trust = False,
) -> Graft:
    """Lay `saved` over the live objects `roots`. Touches nothing; call `apply` on the result.

    At the places `keep` the live value stays. Pickles are refused by name as far as they are not `trusted`.
    Raises CorruptObject if the document contradicts itself.
    """
    twin = walk(roots, policy, contents=False)
    try:
        graft = Graft(saved, policy, twin, keep=keep, trusted=trusted)
        graft.roots(roots)
    except RecursionError:
        raise CorruptObject(
            "The document is nested too deeply to be restored.",
            hint="If it is whole, restore from a place that is less deep in calls.",
        ) from None
    return graft

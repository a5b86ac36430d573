"""What a walk needs to know of frameworks, as data.

The walker, the planner and the differ know no framework. `capture/` and `adapters/` describe theirs
with a `Policy`; policies are merged, never subclassed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from unbroken.state.nodes import Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class Phase(IntEnum):
    """When a planned write is executed. Generators come last: everything else may draw from them. Where there
    are owners, they are written before these too, which must find everything that they are given complete."""

    WORLD = 0
    """Simulators that have to run to be restored (action replay, emulators)."""
    WRITE = 1
    GENERATORS = 2
    OWNERS = 3
    """Code of a person's own objects, which takes its state back and may draw while it does."""


class Codec(Protocol):
    """Writes and reads values of one kind. `name` stands in documents and is never changed."""

    name: str
    mutable: bool
    """Whether values have an identity worth keeping (the walker then registers them)."""

    def encode(self, value: Any, walk: Walk) -> Value:
        """Return the payload. It must not share memory with `value`."""
        ...

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        """Return the object to use at this place: the twin, brought to the saved state by writes that
        are registered with `graft.write`, or a new value. Touch nothing now. `twin` may be MISSING."""
        ...


class Captor(Protocol):
    """Adds state that an object's attributes do not show (a simulator, a file, a worker process)."""

    def attributes(self, obj: Any) -> frozenset[str] | None:
        """The only attributes to walk, or None for all."""
        ...

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        """Return what to keep in `Object.x`."""
        ...

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        """Register the writes that bring `obj` to the saved state, or errors. Touch nothing now."""
        ...


CaptorRule = Callable[[Any], "Captor | None"]


@dataclass(frozen=True)
class Grown:
    """How objects of a structural class are built that a training has made while it ran."""

    complete: Callable[[Any, Any], None]
    """Called with the new object, whose attributes have been written, and one of its class that the program holds,
    or None: gives it what belongs to the process."""
    obstacle: Callable[[Any], str] = lambda _: ""
    """Returns what of a live object could not be built; empty if everything could."""


@dataclass(frozen=True, eq=False)
class Policy:
    """How to walk one framework's objects. Class names are ``module:Qualname`` of a base class.

    Compared by identity and without slots, because lookups are remembered for each policy.
    """

    skip: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Attributes that belong to the process, not to the run."""
    on_class: Mapping[str, Callable[[Any], Mapping[str, Any]]] = field(default_factory=dict)
    """Base class -> function that returns what stands on an object's class and is part of its state all the same,
    by name: spaces, with their generators. An attribute of the object itself stands in front of it."""
    external: frozenset[str] = frozenset()
    """Modules whose objects are kept from the twin."""
    external_classes: frozenset[str] = frozenset()
    """Base classes whose objects are kept from the twin."""
    walked: frozenset[str] = frozenset()
    """Classes written in C that keep to themselves what is no state: of objects derived from them attributes are enough."""
    structural: frozenset[str] = frozenset()
    """Base classes whose objects must exist in the twin and are never built."""
    remade: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    """Base class -> function that completes a new object of it whose attributes have been written. A training may
    put one of these in the place of another, of another class or for other parameters: it is built even where the
    class is structural, and what it refers to keeps the object that it has in its own home."""
    grown: Mapping[str, Grown | None] = field(default_factory=dict)
    """Base class -> how a structural object of it is built at a place where the program has nothing: one that a
    training has made while it ran. None: it is not, although a base of it is."""
    trusted: frozenset[str] = frozenset()
    """Top-level packages whose classes may be built, beside those of the twin's own objects."""
    functions: frozenset[str] = frozenset()
    """Functions that a document may name although the program holds none of them yet."""
    components: Mapping[str, str] = field(default_factory=dict)
    """Base class -> component that its objects open."""
    component_keys: Mapping[str, str] = field(default_factory=dict)
    """Attribute name -> component that a structural object under this name opens."""
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """Class -> codec, looked up along the method resolution order."""
    captors: tuple[CaptorRule, ...] = ()
    """Asked in order for each object that has attributes; the first captor found is used."""
    rings: tuple[Callable[[Any], Mapping[str, int] | None], ...] = ()
    """Asked for each object: attribute name -> number of leading rows ever written, or None. Holds
    for every array inside the attribute (a dict of arrays, say)."""
    tables: Mapping[str, Callable[[Any], Mapping[str, Any]]] = field(default_factory=dict)
    """Base class -> function that names the tensors of an object (`state_dict` names)."""

    def merged(self, *others: Policy) -> Policy:
        """Return this policy together with others; of two entries for one key the later wins."""
        skip: dict[str, frozenset[str]] = {}
        for policy in (self, *others):
            for name, attributes in policy.skip.items():
                skip[name] = skip.get(name, frozenset()) | attributes
        every = (self, *others)
        return Policy(
            skip=skip,
            on_class={k: v for p in every for k, v in p.on_class.items()},
            external=frozenset().union(*(p.external for p in every)),
            external_classes=frozenset().union(*(p.external_classes for p in every)),
            walked=frozenset().union(*(p.walked for p in every)),
            structural=frozenset().union(*(p.structural for p in every)),
            remade={k: v for p in every for k, v in p.remade.items()},
            grown={k: v for p in every for k, v in p.grown.items()},
            trusted=frozenset().union(*(p.trusted for p in every)),
            functions=frozenset().union(*(p.functions for p in every)),
            components={k: v for p in every for k, v in p.components.items()},
            component_keys={k: v for p in every for k, v in p.component_keys.items()},
            codecs={k: v for p in every for k, v in p.codecs.items()},
            captors=tuple(rule for p in reversed(every) for rule in p.captors),
            rings=tuple(rule for p in reversed(every) for rule in p.rings),
            tables={k: v for p in every for k, v in p.tables.items()},
        )

"""What a policy says of a class, found once and remembered.

Policies name classes by ``module:Qualname``, so that describing a framework does not import it. A
lookup goes along the method resolution order: the nearest base that is named decides.
"""

from __future__ import annotations

import enum
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unbroken.state import stdlib
from unbroken.state.nodes import class_name
from unbroken.state.policy import Codec, Grown, Policy

STATELESS = frozenset({
    # Of the process, or of the program, and not of the run: a restart makes them anew.
    "threading", "_thread", "socket", "_socket", "ssl", "_ssl", "select", "selectors", "subprocess", "signal",
    "multiprocessing", "concurrent", "asyncio", "contextvars", "_contextvars", "ctypes", "_ctypes", "mmap",
    "io", "_io", "tempfile", "logging", "csv", "_csv", "warnings", "traceback", "atexit",
    # Constants: what they are is in the code.
    "re", "string", "_struct", "contextlib", "operator", "typing", "abc", "inspect", "importlib", "_frozen_importlib",
    "_frozen_importlib_external", "functools",
})  # fmt: skip
"""Modules of the standard library whose objects hold nothing that belongs to a run. Objects of the others
are said to be not captured, unless they have a codec."""

STATELESS_CLASSES = frozenset({
    "weakref:ReferenceType", "weakref:WeakMethod", "weakref:finalize", "weakref:ProxyType",
    "builtins:weakref.ReferenceType", "builtins:weakproxy", "builtins:mappingproxy", "builtins:property",
    "builtins:staticmethod", "builtins:classmethod", "builtins:frame", "builtins:code", "builtins:traceback",
    "builtins:getset_descriptor", "builtins:member_descriptor", "builtins:method_descriptor",
    "builtins:wrapper_descriptor", "builtins:method-wrapper", "builtins:memoryview", "types:GenericAlias",
    "types:UnionType", "builtins:object", "_abc:_abc_data",
})  # fmt: skip

WALKED_STDLIB = frozenset({"collections", "argparse", "types", "dataclasses"})
"""Modules of the standard library whose objects are ordinary Python objects."""


_SHOWN_ENOUGH = frozenset({
    "builtins:module", "builtins:property", "builtins:classmethod", "builtins:staticmethod",
    "weakref:ReferenceType", "_thread:_local",
})  # fmt: skip
"""Classes written in C whose memory is no state, or stands in attributes."""
_POINTER = tuple.__itemsize__
_HEAP_TYPE = 1 << 9
"""Flag of a class that is made at run time, as Python's own are."""


class Kind(enum.Enum):
    """How values of a class are walked."""

    LIST = enum.auto()
    TUPLE = enum.auto()
    SET = enum.auto()
    DEQUE = enum.auto()
    DICT = enum.auto()
    BYTES = enum.auto()
    ARRAY = enum.auto()
    CODED = enum.auto()
    CLASS = enum.auto()
    FUNCTION = enum.auto()
    METHOD = enum.auto()
    PARTIAL = enum.auto()
    EXTERNAL = enum.auto()
    OBJECT = enum.auto()
    OPAQUE = enum.auto()


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """Everything a walk or a plan needs to know of one class."""

    name: str
    kind: Kind
    skip: frozenset[str]
    slots: tuple[str, ...]
    codec: Codec | None
    base: str
    """The named base that opens a component, or empty."""
    component: str
    structural: bool
    remade: str
    """The named base whose objects a training may put in the place of each other, or empty."""
    grown: Grown | None
    """How objects are built that a training has made, if they can be."""
    on_class: Callable[[Any], Mapping[str, Any]] | None
    """Returns what stands on the class of an object and is part of its state, if the policy has such a thing."""
    tabled: str
    """The named base that has a table of tensors, or empty."""
    stateless: bool
    """Of something external: whether it holds nothing that belongs to a run."""


def attributes_of(value: Any, facts: ClassFacts) -> Mapping[str, Any]:
    """Return an object's attributes, and those of its class that are part of its state."""
    own: Mapping[str, Any] = value.__dict__ if type(value).__dictoffset__ else {}
    return own if facts.on_class is None else {**facts.on_class(value), **own}


def _named(cls: type) -> tuple[str, ...]:
    """Return what a class itself names as its slots."""
    declared = cls.__dict__.get("__slots__", ())
    return (declared,) if isinstance(declared, str) else tuple(declared)


def slots_of(cls: type) -> tuple[str, ...]:
    """Return the names of all slots of a class and its bases, except the two that hold no state."""
    found: list[str] = []
    for base in cls.__mro__:
        for name in _named(base):
            if name not in ("__dict__", "__weakref__"):
                mangled = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if mangled else name)
    return tuple(found)


def _hides_memory(cls: type, shown: frozenset[str]) -> bool:
    """Whether objects of a class have memory that neither attributes nor slots show: it is derived from one that is
    written in C, as most of what pandas makes is."""
    while cls is not object and class_name(cls) not in shown:
        base = cls.__base__
        assert base is not None
        slots = [value for value in vars(cls).values() if type(value) is types.MemberDescriptorType]
        # Of a slot that something else stands in front of only the name is left.
        pointers = max(len(slots), len(_named(cls))) if cls.__flags__ & _HEAP_TYPE else 0
        pointers += bool(cls.__dictoffset__ and not base.__dictoffset__)
        pointers += bool(cls.__weakrefoffset__ and not base.__weakrefoffset__)
        if cls.__basicsize__ - base.__basicsize__ > _POINTER * pointers:
            return True
        cls = base
    return False


def _kind(cls: type, policy: Policy, *, coded: bool, external: bool, opens: bool = False) -> Kind:
    module = getattr(cls, "__module__", "builtins")
    if coded:
        return Kind.CODED
    if issubclass(cls, type) or cls is types.ModuleType:
        return Kind.CLASS
    if issubclass(cls, types.MethodType):
        return Kind.METHOD
    if issubclass(cls, (types.FunctionType, types.BuiltinFunctionType, np.ufunc)):
        return Kind.FUNCTION
    if issubclass(cls, partial):
        return Kind.PARTIAL
    if external or any(module == m or module.startswith(m + ".") for m in policy.external):
        return Kind.EXTERNAL
    for base, kind in (
        (np.ndarray, Kind.ARRAY), (tuple, Kind.TUPLE), (dict, Kind.DICT), (list, Kind.LIST),
        (set, Kind.SET), (frozenset, Kind.SET), (deque, Kind.DEQUE),
    ):  # fmt: skip
        if issubclass(cls, base):
            return kind
    if cls in (bytes, bytearray):
        return Kind.BYTES
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__" and module not in WALKED_STDLIB:
        # Locks, files, threads, sockets, iterators: walking into one and writing it back would break it.
        return Kind.EXTERNAL
    if any(type(vars(base).get("__next__")) is types.WrapperDescriptorType for base in cls.__mro__):
        # Derived from an iterator written in C (`class Ids(itertools.count)`): no attribute shows how far it is.
        return Kind.EXTERNAL
    walked = cls.__dictoffset__ or slots_of(cls)
    # What a policy names, environments among it, it knows how to capture.
    return (
        Kind.OBJECT
        if walked and (opens or not _hides_memory(cls, _SHOWN_ENOUGH | policy.walked))
        else Kind.OPAQUE
    )


class Lookup:
    """The memory of one policy. Get it with `lookup(policy)`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._by_class = {**stdlib.CODECS, **policy.codecs}
        self.codecs = {codec.name: codec for codec in self._by_class.values()}
        self._facts: dict[type, ClassFacts] = {}

    def facts(self, cls: type) -> ClassFacts:
        """Return what the policy says of `cls`."""
        found = self._facts.get(cls)
        if found is None:
            found = self._facts[cls] = self._find(cls)
        return found

    def _codec(self, cls: type, names: list[str]) -> Codec | None:
        # An IntEnum is an int as well, and earlier; what makes it what it is, is its enumeration.
        if issubclass(cls, enum.Enum):
            names = ["enum:Enum"]
        found = next((n for n in names if n in self._by_class), "")
        codec = self._by_class.get(found)
        # A codec of one class cannot know what a class derived from it holds beside.
        return None if codec is not None and getattr(codec, "exact", False) and found != names[0] else codec

    def _stateless(self, cls: type, name: str, *, declared: bool) -> bool:
        module = getattr(cls, "__module__", "builtins")
        return (
            declared
            or any(module == m or module.startswith(f"{m}.") for m in self.policy.external)
            or module.partition(".")[0] in STATELESS
            or name in STATELESS_CLASSES
        )

    def _find(self, cls: type) -> ClassFacts:
        policy, names = self.policy, [class_name(base) for base in cls.__mro__]
        codec = None if cls is bytes else self._codec(cls, names)
        external = any(n in policy.external_classes for n in names)
        base = next((n for n in names if n in policy.components), "")
        remade = next((n for n in names if n in policy.remade), "")
        opens = bool(base or remade) or any(n in policy.structural for n in names)
        return ClassFacts(
            name=names[0],
            kind=_kind(cls, policy, coded=codec is not None, external=external, opens=opens),
            skip=frozenset().union(*(policy.skip.get(n, frozenset()) for n in names)),
            slots=slots_of(cls),
            codec=codec,
            base=base,
            component=policy.components.get(base, ""),
            structural=not remade and any(n in policy.structural for n in names),
            remade=remade,
            grown=next((policy.grown[n] for n in names if n in policy.grown), None),
            on_class=next((policy.on_class[n] for n in names if n in policy.on_class), None),
            tabled=next((n for n in names if n in policy.tables), ""),
            stateless=self._stateless(cls, names[0], declared=external),
        )


def lookup(policy: Policy) -> Lookup:
    """Return the lookup of a policy, made on first use and as long-lived as the policy."""
    memory: dict[str, Any] = vars(policy)
    found = memory.get("_lookup")
    if not isinstance(found, Lookup):
        found = memory["_lookup"] = Lookup(policy)
    return found

"""What a container or a value of a class of the program's own holds, read past what that class says.

A class derived from a built-in may answer in its own way: give out its members in an order that it draws, move
what was asked for last, make an entry for each name it is asked for, print itself masked. A save has to find what is
there, and must not change it. So an object is asked for no attribute that it may not have, either.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, cast

from unbroken.state.nodes import PLAIN
from unbroken.types import MISSING

_WITH_MEMBERS: dict[Any, None] = dict.fromkeys((list, tuple, set, frozenset, deque))


def items_of(value: dict[Any, Any]) -> ItemsView[Any, Any]:
    """Return the entries of a dict in their order."""
    if type(value) is dict:  # nearly all are
        return value.items()
    # An OrderedDict keeps its order in a list of its own.
    return OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)


def members_of(value: Any) -> Iterator[Any]:
    """Return an iterator over the members of a list, tuple, set or deque; of another class, what that gives out."""
    if type(value) in _WITH_MEMBERS:  # nearly all are
        return iter(value)
    kind = next((kind for kind in _WITH_MEMBERS if isinstance(value, kind)), None)
    return iter(value) if kind is None else kind.__iter__(value)


def declared(value: object, name: str, default: Any = None) -> Any:
    """Return an attribute that an object or its class has; else `default`, without asking its `__getattr__`, which may do
    anything: make one, or ask another machine."""
    line: tuple[type, ...] = _of_class(type(value), "__mro__")
    if any(name in _of_class(base, "__dict__") for base in line) or name in attributes_in(value):
        return getattr(value, name, default)
    return default


def attributes_in(value: object) -> Mapping[str, Any]:
    """Return what stands in an object itself, whatever its class does under the name `__dict__`."""
    for base in _of_class(type(value), "__mro__"):
        slot = _of_class(base, "__dict__").get("__dict__")
        if type(slot) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return cast("Mapping[str, Any]", slot.__get__(value))
    return {}


def holds_objects(value: object) -> bool:
    """Whether attributes of an object hold what others may hold too."""
    return any(type(held) not in PLAIN for held in attributes_in(value).values())


def slot_of(value: object, name: str) -> Any:
    """Return what stands in a slot; MISSING where it is empty, and a `__getattr__` would make something up."""
    slot = getattr(type(value), name, None)
    if type(slot) is not types.MemberDescriptorType:  # another attribute stands in front of it
        return getattr(value, name, MISSING)
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def _of_class(cls: type, name: str) -> Any:
    """Return what `type` itself holds of a class, whatever its own class does under that name."""
    return type.__getattribute__(cls, name)


def plain_of(value: Any) -> Any:
    """Return the plain int, float, str or bytes that an object of a derived class is."""
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else bytes.__getitem__(value, slice(None))

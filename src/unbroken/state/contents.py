"""What a container or a value of a class of the program's own holds, read past what that class says.

A class derived from a built-in may answer in its own way: give out its members in an order that it draws, move
what was asked for last, make an entry for each name it is asked for, print itself masked. A save has to find what is
there, and must not change it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import ItemsView, Iterator
from typing import Any

_WITH_MEMBERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)


def items_of(value: dict[Any, Any]) -> ItemsView[Any, Any]:
    """Return the entries of a dict in their order."""
    # An OrderedDict keeps its order in a list of its own.
    return OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)


def members_of(value: Any) -> Iterator[Any]:
    """Return an iterator over the members of a list, tuple, set or deque; of another class, what that gives out."""
    kind = next((kind for kind in _WITH_MEMBERS if isinstance(value, kind)), None)
    return iter(value) if kind is None else kind.__iter__(value)


def plain_of(value: Any) -> Any:
    """Return the plain int, float, str or bytes that an object of a derived class is."""
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else bytes.__getitem__(value, slice(None))

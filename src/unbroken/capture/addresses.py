"""Addresses of this process in a captured state: numbers that lead to an object here, and nowhere in the next.

`self.handle = id(self)` is a common key into a table of simulators. Every process has such an object at another
address, so a restored one leads nowhere, or to something else. In a copy of the process it still leads to the
right place, which is why a trial in copies alone does not find it: here each is exchanged for one that leads
nowhere, and the trial is repeated.

Not promised: addresses in arrays, in long lists of numbers and in text; handles that are no addresses.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from unbroken.state.snapshot import Component, Snapshot

LOWEST = 1 << 32
"""Smaller numbers are taken for counts, unless an object of the environment has just that address."""
_FLIPPED = (45, 44, 46, 43)
"""Bits by which an address becomes one that leads nowhere."""


def exchanged(snapshot: Snapshot, root: str, objects: Collection[object]) -> tuple[Snapshot, list[str]]:
    """Return a snapshot in which the addresses below `root` lead nowhere, and where they stand, below it.

    `objects` are those that the state belongs to. What a capturer has added stands below ``<state>``. The same
    address is exchanged for the same number everywhere.
    """
    exchange = _Exchange({id(one) for one in objects}, _mapped())
    components: dict[str, Component] = {}
    for name, component in snapshot.components.items():
        roots = copy.deepcopy(component.roots)
        for place, node in roots.items():
            if place.partition("/")[0] == root:
                roots[place] = exchange.at(node, place.split("/")[1:])
        components[name] = replace(component, roots=roots)
    return Snapshot(components=components), exchange.places


@dataclass(slots=True)
class _Exchange:
    ids: set[int]
    mapped: tuple[list[int], list[int]]
    places: list[str] = field(default_factory=list[str])

    def leads_somewhere(self, number: int) -> bool:
        starts, ends = self.mapped
        at = bisect_right(starts, number) - 1
        return number in self.ids or (number >= LOWEST and at >= 0 and number < ends[at])

    def at(self, node: Any, place: list[str]) -> Any:
        """Exchange what stands in a node; return what is to stand in its place."""
        if type(node) is int and self.leads_somewhere(node):
            self.places.append("/".join(place))
            found = (node ^ (1 << bit) for bit in _FLIPPED)
            return next((number for number in found if not self.leads_somewhere(number)), -1)
        if isinstance(node, msgspec.Struct):
            for name in node.__struct_fields__:
                step = ["<state>"] if name == "x" else []
                setattr(node, name, self.at(getattr(node, name), place + step))
        elif isinstance(node, dict):
            below_captor = place[-1:] == ["<state>"]
            for key in node:
                node[key] = self.at(node[key], place if below_captor else [*place, key])
        elif isinstance(node, (list, tuple)):
            return type(node)(self.at(value, place) for value in node)
        return node


def _mapped() -> tuple[list[int], list[int]]:
    """Return where the memory of this process begins and ends, piece by piece."""
    starts: list[int] = []
    ends: list[int] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
            starts.append(start)
            ends.append(end)
    return starts, ends

"""Steps from object to object of a loaded checkpoint, by attributes, entries and modules.

A step that leads nowhere gives a cursor at nothing, so that a question about a whole path is one expression.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unbroken.report.arrays import Arrays, NamedArray
from unbroken.state.nodes import Bytes as BytesNode
from unbroken.state.nodes import (
    Class,
    Coded,
    Deque,
    Dict,
    Float,
    Int,
    List,
    Node,
    Object,
    Tuple,
    Value,
)
from unbroken.state.places import visit
from unbroken.state.snapshot import Component, Snapshot

_SCALAR = "numpy.scalar"


@dataclass(frozen=True)
class Cursor:
    """A value of a checkpoint, and where references from it lead."""

    arrays: Arrays
    value: Value
    component: Component
    place: str = ""

    def _to(self, value: Value, key: str) -> Cursor:
        found, home = self.arrays.resolve(value, self.component)
        return Cursor(self.arrays, found, home, f"{self.place}/{key}" if self.place else key)

    def __bool__(self) -> bool:
        return self.value is not None

    @property
    def cls(self) -> str:
        """The class of an object, `module:Name`; empty for anything else."""
        return self.value.c if isinstance(self.value, Object) else ""

    def attr(self, *names: str) -> Cursor:
        """Follow attributes of objects, or keys of dicts."""
        at = self
        for name in names:
            node = at.value
            fields: dict[str, Value] = {}
            if isinstance(node, Object):
                fields = {**node.s, **node.a}
            elif isinstance(node, Dict):
                fields = node.v or {}
            at = at._to(fields.get(name), name)
        return at

    def module(self, path: str) -> Cursor:
        """Follow the names of modules in modules, as torch joins them."""
        at = self
        for name in filter(None, path.split(".")):
            at = at.attr("_modules", name)
        return at

    def items(self) -> Iterator[tuple[str, Cursor]]:
        """Yield the entries of a dict of strings, or the elements of a list, a tuple or a deque."""
        node = self.value
        entries: list[tuple[str, Value]] = []
        if isinstance(node, Dict):
            entries = list((node.v or {}).items())
        elif isinstance(node, (List, Tuple, Deque)):
            entries = [(str(i), value) for i, value in enumerate(node.v)]
        for key, value in entries:
            yield key, self._to(value, key)

    def attributes(self) -> Iterator[tuple[str, Cursor]]:
        """Yield the attributes of an object."""
        if isinstance(self.value, Object):
            for key, value in {**self.value.s, **self.value.a}.items():
                yield key, self._to(value, key)

    def array(self) -> NamedArray | None:
        """The array or tensor that stands here."""
        return self.arrays.array(self.value, self.component)

    def plain(self) -> Any:
        """A plain value: number, text, None, the name of a class, an array, or a list of them; of anything else None."""
        node = self.value
        if not isinstance(node, Node):
            return node
        if isinstance(node, Float):
            return float(node.v) if len(node.v) < 16 else struct.unpack(">d", bytes.fromhex(node.v))[0]
        if isinstance(node, Int):
            return int(node.v, 16)
        if isinstance(node, Class):
            return node.q
        if isinstance(node, Coded) and node.k == _SCALAR:
            return self._scalar(node)
        if isinstance(node, Coded) and not isinstance(node.v, Node):
            return node.v  # a dtype, a device
        if isinstance(node, Coded) and isinstance(node.v, Tuple):
            return self._to(node.v, "value").plain()
        if isinstance(node, (List, Tuple)):
            return [item.plain() for _, item in self.items()]
        found = self.array()
        return None if found is None else found.numeric

    def _scalar(self, node: Coded) -> Any:
        fields = (node.v.v or {}) if isinstance(node.v, Dict) else {}
        data, dtype = fields.get("v"), fields.get("d")
        if isinstance(data, BytesNode) and isinstance(dtype, str):
            return np.frombuffer(data.v, dtype)[0].item()
        return None

    def number(self, default: float | None = None) -> float | None:
        """The plain value as a number, `default` if it is none."""
        found = self.plain()
        return found if isinstance(found, (int, float)) and not isinstance(found, bool) else default


class Checkpoint:
    """A loaded checkpoint as one rank has it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.arrays = Arrays(snapshot)

    def roots(self) -> Iterator[Cursor]:
        """Yield every root, component by component."""
        for component in self.snapshot.components.values():
            for place, value in component.roots.items():
                found, home = self.arrays.resolve(value, component)
                yield Cursor(self.arrays, found, home, place)

    def root(self, place: str) -> Cursor:
        """Return the root at a place, wherever it stands."""
        for component in self.snapshot.components.values():
            if place in component.roots:
                found, home = self.arrays.resolve(component.roots[place], component)
                return Cursor(self.arrays, found, home, place)
        return Cursor(self.arrays, None, Component(""))

    def objects(self, component: str = "") -> Iterator[Cursor]:
        """Yield every object, of one component or of all, once, with its place. Other processes are not entered."""
        for name, part in self.snapshot.components.items():
            if component and name != component:
                continue
            for root, value in part.roots.items():
                for place, node in visit(root, value):
                    if isinstance(node, Object):
                        yield Cursor(self.arrays, node, part, place)

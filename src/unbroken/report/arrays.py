"""The arrays and tensors of a loaded checkpoint as numpy arrays, without the framework that made them.

A tensor whose type numpy lacks (`bfloat16`, the 8-bit floats) comes as its bits, under its own type's
name; whoever knows the type turns them back.

Not promised: views of numpy arrays (they are another array's memory), and the state of other processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import ConfigError, CorruptObject
from unbroken.state import dtypes
from unbroken.state.nodes import (
    Array,
    Coded,
    Dict,
    Link,
    Node,
    Object,
    Packed,
    Ref,
    Scope,
    Tuple,
    Value,
    children,
    escape,
    unescape,
)
from unbroken.state.places import index, visit
from unbroken.state.snapshot import Component, Snapshot

TENSOR, SHARD = "torch.tensor", "torch.dtensor"
PARTS = frozenset({"target_weights"})
"""Components of networks that are parts of larger ones, and are asked for alone."""

_NUMPY = {
    "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    "bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "bfloat16": "<u2",
}  # fmt: skip
"""The numpy type of a tensor's elements, or of their bits; what is not here is one byte wide."""


@dataclass(frozen=True, slots=True)
class NamedArray:
    """An array, and the name of its type in the program: other than `values.dtype` where they are bits."""

    dtype: str
    values: NDArray[Any]

    @property
    def numeric(self) -> NDArray[Any]:
        """The values in a type that numpy has: `bfloat16` widened to `float32`, which is exact."""
        if self.dtype == "bfloat16":
            widened = np.zeros((*self.values.shape, 2), "<u2")
            widened[..., 1] = self.values  # the upper half of a float32, little end first
            return np.ndarray(self.values.shape, "<f4", buffer=widened)
        return self.values


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    node: Value
    array: NamedArray
    is_buffer: bool


class Arrays:
    """Finds the arrays of a snapshot; follows references within and across its components."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._index = index(snapshot)
        self._tabled: set[int] = set()
        for component in snapshot.components.values():
            named = {place for table in component.tensors.values() for place in table.values()}
            self._tabled |= {
                id(node)
                for root, value in component.roots.items()
                for place, node in visit(root, value)
                if place in named
            }

    def resolve(self, value: Value, component: Component) -> tuple[Value, Component]:
        """Return what a reference leads to, with the component that holds it."""
        if isinstance(value, Ref):
            found: Any = self._index.by_number.get(value.to)
            return found, component
        if isinstance(value, Link):
            name, node = self._index.by_place.get(value.to, ("", None))
            return node, self._snapshot.components.get(name, component)
        return value, component

    def array(self, value: Value, component: Component) -> NamedArray | None:
        """Return the array that stands here, or None if none does."""
        value, component = self.resolve(value, component)
        if isinstance(value, Array):
            return NamedArray(value.d, _array(value, component))
        if isinstance(value, Packed):
            return NamedArray(f"<{value.t}8", np.frombuffer(_raw(value, component), f"<{value.t}8"))
        if isinstance(value, Coded) and value.k == TENSOR and isinstance(value.v, Dict):
            return self._tensor(value.v.v or {}, component)
        return None

    def everything(self, name: str) -> Iterator[tuple[str, NamedArray]]:
        """Yield every array of a component with its place, in the order of the walk."""
        component = self._snapshot.components[name]
        stack: list[tuple[str, Value]] = list(reversed(component.roots.items()))
        while stack:
            place, value = stack.pop()
            if not isinstance(value, Node) or isinstance(value, (Ref, Link, Scope)):
                continue
            array = self.array(value, component)
            if array is not None:
                yield place, array
                continue
            below = [(f"{place}/{escape(key)}", child) for key, child in children(value)]
            stack.extend(reversed(below))

    def modules(self, name: str) -> dict[str, dict[str, NamedArray]]:
        """Return the `state_dict` of every module that opens a component, by the module's place.

        A module of another component below one of these (a target network) belongs to it, as it does
        in the program: load that component too. A module whose tensors are all another's (an actor that a
        policy holds too) is left out: the larger one says everything.

        A module that stands in another one's `_modules` (several ranks have the outer one each for itself)
        is a part of that: load its component too, or what it holds beside such modules is not there.
        """
        found: dict[str, list[_Tensor]] = {}
        for place, tensors in self._opening(name).items():
            # Names of two modules may be the same, and then the table names one of them only; where it
            # names a module's parameters, the buffers that it leaves out are no part of a state_dict.
            named = all(id(t.node) in self._tabled for t in tensors if not t.is_buffer)
            kept = [t for t in tensors if not (t.is_buffer and named and id(t.node) not in self._tabled)]
            if kept:
                found[place] = kept
        return {
            place: {tensor.name: tensor.array for tensor in tensors}
            for place, tensors in found.items()
            if not any(_is_part(tensors, other) for at, other in found.items() if at != place)
        }

    def _opening(self, name: str) -> dict[str, list[_Tensor]]:
        """Return the tensors of every module that opens a component, by the place of the outermost one."""
        component = self._snapshot.components[name]
        tops = {place: (place, "") if name in PARTS else outermost(place) for place in component.roots}
        outer = {
            top: (root, home)
            for top in {top for top, inside in tops.values() if inside}
            for home in self._snapshot.components.values()
            if isinstance(root := home.roots.get(top), Object)
        }
        found: dict[str, list[_Tensor]] = {}
        for place, root in component.roots.items():
            top, inside = tops[place]
            if top in outer:
                if top not in found:
                    found[top] = list(self._module(*outer[top], "", frozenset()))
            elif not any(place.startswith(f"{known}/") for known in outer):
                prefix = f"{inside}." if inside else ""
                found.setdefault(top, []).extend(self._module(root, component, prefix, frozenset()))
        return found

    def _module(
        self, value: Value, component: Component, prefix: str, above: frozenset[int]
    ) -> Iterator[_Tensor]:
        value, component = self.resolve(value, component)
        if not isinstance(value, Object) or id(value) in above:
            return
        for group in ("_parameters", "_buffers"):
            for key, child in self._entries(value.a.get(group), component):
                array = self.array(child, component) or self._shard(prefix + key, child, component)
                if array is not None:
                    node, _ = self.resolve(child, component)
                    yield _Tensor(prefix + key, node, array, group == "_buffers")
        for key, child in self._entries(value.a.get("_modules"), component):
            yield from self._module(child, component, f"{prefix}{key}.", above | {id(value)})

    def _shard(self, name: str, value: Value, component: Component) -> NamedArray | None:
        """Return a distributed tensor of which this checkpoint holds all.

        Raises:
            ConfigError: it holds a part: a `state_dict` of parts would load, and be wrong.
        """
        value, component = self.resolve(value, component)
        if not isinstance(value, Coded) or value.k != SHARD or not isinstance(value.v, Dict):
            return None
        fields = value.v.v or {}
        shape, local = _numbers(fields.get("shape")), _numbers(fields.get("local shape"))
        if shape != local:
            raise ConfigError(
                f"The checkpoint holds the part {list(local or ())} of {name} {list(shape or ())}.",
                hint="Load it in the program that wrote it, or save with unbroken.dcp.",
            )
        return self.array(fields.get("local"), component)

    def _entries(self, value: Value, component: Component) -> list[tuple[str, Value]]:
        value, _ = self.resolve(value, component)
        return list((value.v or {}).items()) if isinstance(value, Dict) else []

    def _tensor(self, fields: dict[str, Value], component: Component) -> NamedArray | None:
        dtype, shape = fields.get("dtype"), _numbers(fields.get("shape"))
        if not isinstance(dtype, str) or shape is None:
            return None
        known = np.dtype(_NUMPY.get(dtype, "|u1"))
        memory, home = self.resolve(fields.get("memory"), component)
        node = memory.v if isinstance(memory, Coded) else None
        if not isinstance(node, Array):
            return NamedArray(dtype, np.zeros(shape, known))
        rows, offset, strides = fields.get("rows"), fields.get("offset"), _numbers(fields.get("strides"))
        written = (rows, *shape[1:]) if isinstance(rows, int) else shape
        try:
            values: NDArray[Any] = np.ndarray(
                written,
                known,
                buffer=_raw(node, home),
                offset=offset if isinstance(offset, int) else 0,
                strides=None if strides is None else tuple(n * known.itemsize for n in strides),
            )
        except (TypeError, ValueError) as error:
            raise CorruptObject(f"A tensor in {home.name} leaves its memory: {error}.") from error
        return NamedArray(dtype, _padded(values, shape))


def outermost(place: str) -> tuple[str, str]:
    """Return the place of the outermost module that has the one at `place` among its modules, and the name
    of the inner one in it; empty where there is none.

    >>> outermost("module/_modules/net/_modules/0"), outermost("model/policy")
    (('module', 'net.0'), ('model/policy', ''))
    """
    names: list[str] = []
    while (parts := place.rsplit("/", 2))[1:2] == ["_modules"]:
        place, _, key = parts
        names.append(unescape(key))
    return place, ".".join(reversed(names))


def _is_part(tensors: list[_Tensor], other: list[_Tensor]) -> bool:
    """Whether `other` holds all of `tensors` and more."""
    mine, theirs = ({id(tensor.node) for tensor in one} for one in (tensors, other))
    return mine < theirs


def _array(node: Array, component: Component) -> NDArray[Any]:
    written = (node.rows, *node.s[1:]) if node.rows >= 0 else node.s
    try:
        values: NDArray[Any] = np.ndarray(
            written,
            dtypes.parse(node.d),
            buffer=_raw(node, component),
            order="F" if node.o == "F" else "C",
        )
        return _padded(values, node.s)
    except (TypeError, ValueError) as error:
        raise CorruptObject(f"An array in {component.name} does not fit its shape: {error}.") from error


def _padded(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return `values` with the rows that were never written, as zeros."""
    if values.shape == tuple(shape):
        return values
    whole = np.zeros(shape, values.dtype)
    whole[: len(values)] = values
    return whole


def _raw(node: Array | Packed, component: Component) -> bytes | NDArray[np.uint8]:
    return component.content(node.b) if node.b >= 0 else node.data


def _numbers(node: Value) -> tuple[int, ...] | None:
    return tuple(n for n in node.v if isinstance(n, int)) if isinstance(node, Tuple) else None

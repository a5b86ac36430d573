"""Numpy arrays to nodes: what owns its memory, views into memory that is in the state too, and rings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import NotCapturable
from unbroken.state import dtypes
from unbroken.state.nodes import INLINE_BYTES, Array, ObjectArray, Value, View

if TYPE_CHECKING:
    from unbroken.state.lookup import ClassFacts
    from unbroken.state.walk import Walk


def memory_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that owns the memory of `array`."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _stands_for_its_memory(walk: Walk, value: NDArray[Any]) -> bool:
    """Whether a view shows all of its memory and is the first met in it: so is an array from a pickle. It
    is written as if it were the owner then, which nobody has a name for."""
    base = memory_of(value)
    met = id(base) in walk._seen or id(base) in walk.owners
    if met or not value.flags.c_contiguous or value.nbytes != base.nbytes:
        return False
    walk.owners[id(base)] = value
    return True


def write(walk: Walk, value: NDArray[Any], facts: ClassFacts) -> Value:
    """Write an array. For `Walk`, which has not met it yet."""
    if type(value) not in (np.ndarray, np.memmap):
        raise NotCapturable(
            f"{walk.place} is a {facts.name}, and what it holds beside its numbers would be lost.",
            hint="Keep a plain numpy array, or register a codec for the class.",
            place=walk.place,
        )
    rows, walk.rows = walk.rows, None
    ring, walk.ring = walk.ring, None
    try:
        if value.dtype.hasobject:
            return _objects(walk, value, rows)
        lent = memory_of(value) is not value or id(value) in walk.owners
        if lent and (ring is None or not _stands_for_its_memory(walk, value)):
            return _view(walk, value)
        return _owner(walk, value, rows, ring)
    finally:
        walk.rows, walk.ring = rows, ring


def _owner(walk: Walk, value: NDArray[Any], rows: int | None, ring: tuple[object, str] | None) -> Value:
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    node = Array(d=dtypes.name(value.dtype), s=value.shape, o="F" if fortran else "C")
    walk._keep(value, node)
    if ring is None or rows is None:
        node.b, node.data = walk.pack(value.T if fortran else value)
    else:
        walk.later(partial(_fill, walk, node, value, rows, ring), last=True)
    return node


def _fill(walk: Walk, node: Array, value: NDArray[Any], rows: int, ring: tuple[object, str]) -> None:
    """Give the array of a ring its content: what the ring has written, if nobody else has the array. What
    others wrote into it, the ring does not know."""
    written = value
    if not walk.met_again(value):
        if value.ndim and rows < value.shape[0]:
            node.rows = rows
            written = value[:rows]
        if walk.contents and written.flags.c_contiguous and written.size:
            flat = written.reshape(-1).view(np.uint8)
            node.b = walk.rows_of(value, flat, written.nbytes // written.shape[0], ring)
    if node.b < 0:
        node.b, node.data = walk.pack(written.T if node.o == "F" and node.rows < 0 else written)


def _objects(walk: Walk, value: NDArray[Any], rows: int | None) -> Value:
    if value.dtype != np.dtype(object):
        raise NotCapturable(
            f"{walk.place} is a numpy array with Python objects inside records, which cannot be saved.",
            hint="Use separate arrays.",
            place=walk.place,
        )
    node = ObjectArray(s=value.shape, v=[])
    walk._keep(value, node)
    if memory_of(value) is not value:
        walk._again.add(id(memory_of(value)))
    written = value
    if rows is not None and value.ndim and rows < value.shape[0]:
        node.rows = rows
        written = value[:rows]
        walk.later(partial(_widen, walk, node, value))
    node.v = [walk.child(str(i), item) for i, item in enumerate(written.reshape(-1).tolist())]
    return node


def _widen(walk: Walk, node: ObjectArray, value: NDArray[Any]) -> None:
    """Write the other rows too, if somebody else has the array."""
    if walk.met_again(value):
        node.rows = -1
        start = len(node.v)
        rest = value.reshape(-1)[start:].tolist()
        node.v += [walk.child(str(i), item) for i, item in enumerate(rest, start)]


def _owner_met(walk: Walk, value: NDArray[Any]) -> NDArray[Any]:
    base = memory_of(value)
    return walk.owners.get(id(base), base)


def _view(walk: Walk, value: NDArray[Any]) -> View:
    """Write an array that lies in another one's memory."""
    base = _owner_met(walk, value)
    node = View(d=dtypes.name(value.dtype), s=value.shape)
    walk._keep(value, node)
    start = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    shares = base.flags.forc and not base.dtype.hasobject and 0 <= start <= base.nbytes
    if not shares:
        node.b, node.data = walk.pack(value)
    elif id(base) in walk._seen or base.nbytes <= 4 * max(value.nbytes, INLINE_BYTES // 4):
        _share(walk, node, value, start)
    else:
        # Its owner is much larger. Whether that is in the state too is known only at the end.
        walk.later(partial(_share_if_met, walk, node, value, start))
    return node


def _share(walk: Walk, node: View, value: NDArray[Any], start: int) -> None:
    node.off, node.st = start, tuple(value.strides)
    node.of = walk.child("<base>", _owner_met(walk, value))


def _share_if_met(walk: Walk, node: View, value: NDArray[Any], start: int) -> None:
    if id(_owner_met(walk, value)) in walk._seen:
        _share(walk, node, value, start)
    else:
        node.b, node.data = walk.pack(value)

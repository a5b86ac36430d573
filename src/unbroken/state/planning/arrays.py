"""Numpy arrays: in place where the twin's fits, views into the memory that they had."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import CorruptObject
from unbroken.state import dtypes
from unbroken.state.arrays import memory_of
from unbroken.state.memory import copy_array
from unbroken.state.nodes import Array, ObjectArray, View, same
from unbroken.state.planning.containers import plan_items
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft

COMPARE_UP_TO = 1 << 20
"""Arrays up to so many bytes are compared first, so that what is equal (and perhaps shared by the
whole program) is not written to."""

UNCONFIRMED = 1 << 30
"""Bytes up to which an array may be larger than what the document holds of it, if the program has none."""


def _content(graft: Graft, node: Array | View, rows: int = -1, written: str = "C") -> NDArray[Any]:
    dtype = dtypes.parse(node.d)
    shape = (rows, *node.s[1:]) if rows >= 0 else tuple(node.s)
    order: Literal["C", "F"] = "F" if written == "F" and rows < 0 else "C"
    data = graft.bytes_of(node.b, node.data)
    if min(shape, default=0) < 0 or data.nbytes != dtype.itemsize * math.prod(shape):
        raise CorruptObject(f"{graft.place} holds {data.nbytes} bytes for {node.d}{list(shape)}.")
    try:
        if data.nbytes == 0:
            return np.empty(shape, dtype=dtype, order=order)
        return data.view(dtype).reshape(shape, order=order)
    except (ValueError, OverflowError, MemoryError) as error:  # a dimension that no array can have
        raise CorruptObject(f"{graft.place} cannot be an array {node.d}{list(shape)}.") from error


def plan_array(graft: Graft, node: Array, twin: object) -> Any:
    content = _content(graft, node, node.rows, node.o)
    fits = (
        isinstance(twin, np.ndarray)
        and twin.dtype == content.dtype
        and twin.shape == tuple(node.s)
        and twin.flags.writeable
        and _has_memory(graft, twin)
    )
    own = graft.use(node, twin, fits=fits)
    if own is MISSING:
        if isinstance(twin, np.ndarray) and (twin.shape != tuple(node.s) or twin.dtype != content.dtype):
            graft.note("replaced", f"{twin.dtype}{list(twin.shape)} by {content.dtype}{list(node.s)}.")
        return graft.bind(node, _fresh_array(graft, node, content))
    target = own[: node.rows] if node.rows >= 0 else own
    if content.nbytes > COMPARE_UP_TO or target.tobytes() != content.tobytes():
        graft.fill(target, node.b, content)
    return own


def _has_memory(graft: Graft, twin: NDArray[Any]) -> bool:
    """Whether the twin has memory for itself: its own, or all of another's that serves no saved array yet
    and for which a walk writes it as the owner."""
    memory = memory_of(twin)
    return memory is twin or (graft.is_owner(twin, memory) and graft.claim(memory))


def _fresh_array(graft: Graft, node: Array, content: NDArray[Any]) -> NDArray[Any]:
    if node.rows < 0:
        new = np.empty(content.shape, content.dtype, order="F" if node.o == "F" else "C")
        copy_array(new, content)
        return new
    _confirm(graft, node.s, content.itemsize, content.nbytes)
    if node.rows > node.s[0]:
        raise CorruptObject(f"{graft.place} has more rows written than it has.")
    try:
        whole = np.zeros(node.s, content.dtype, order="F" if node.o == "F" else "C")
    except (MemoryError, ValueError) as error:
        raise CorruptObject(f"{graft.place} claims a size of {list(node.s)}, which cannot be had.") from error
    copy_array(whole[: node.rows], content)
    return whole


def _confirm(graft: Graft, shape: tuple[int, ...], itemsize: int, held: int) -> None:
    """Refuse to allocate what only the document speaks of."""
    if min(shape, default=0) < 0 or itemsize * math.prod(shape) > held + UNCONFIRMED:
        raise CorruptObject(
            f"{graft.place} claims a size of {list(shape)}, and the program has no such array."
        )


def plan_objects(graft: Graft, node: ObjectArray, twin: object) -> Any:
    shape = tuple(node.s)
    expected = math.prod((node.rows, *shape[1:])) if node.rows >= 0 else math.prod(shape)
    if len(node.v) != expected:
        raise CorruptObject(f"{graft.place} holds {len(node.v)} objects for {list(shape)}.")
    fits = (
        isinstance(twin, np.ndarray)
        and twin.dtype == np.dtype(object)
        and twin.shape == shape
        and not isinstance(twin.base, np.ndarray)
    )
    own = graft.use(node, twin, fits=fits)
    if own is MISSING:
        _confirm(graft, shape, 8, 8 * len(node.v))
    try:
        result = graft.bind(node, np.empty(shape, object)) if own is MISSING else own
    except (MemoryError, ValueError) as error:
        raise CorruptObject(f"{graft.place} claims a size of {list(shape)}, which cannot be had.") from error
    target = result[: node.rows] if node.rows >= 0 else result
    had = target.reshape(-1).tolist() if own is not MISSING else []
    items = plan_items(graft, node.v, had)
    if own is MISSING or not all(map(same, items, had)):
        graft.write(_fill_objects, target, items)
    return result


def _fill_objects(target: NDArray[Any], items: list[Any]) -> None:
    flat = np.empty(len(items), object)
    for i, item in enumerate(items):  # one by one: numpy would spread a sequence over several places
        flat[i] = item
    target[...] = flat.reshape(target.shape)


def plan_view(graft: Graft, node: View, twin: object) -> Any:
    if node.of is None:
        return _dense(graft, node, twin)
    dtype = dtypes.parse(node.d)
    live = twin if isinstance(twin, np.ndarray) else None
    lent = live is not None and isinstance(live.base, np.ndarray)
    base = graft.value("<base>", node.of, memory_of(live) if live is not None and lent else MISSING)
    if not isinstance(base, np.ndarray) or base.dtype.hasobject:
        return graft.refuse("is a view of something that is no array.", twin)
    shared = live is not None and live is not base and memory_of(live) is memory_of(base)
    if live is not None and shared and _same_layout(live, base, node, dtype):
        return graft.bind(node, live)
    if len(node.s) != len(node.st) or min(node.s, default=1) < 0:
        raise CorruptObject(f"{graft.place} is a view of no shape.")
    if 0 in node.s:
        return graft.bind(node, np.empty((0,), dtype).reshape([n or 0 for n in node.s]))
    low = node.off + sum(min(0, (n - 1) * st) for n, st in zip(node.s, node.st, strict=True))
    high = node.off + sum(max(0, (n - 1) * st) for n, st in zip(node.s, node.st, strict=True))
    if low < 0 or high + dtype.itemsize > base.nbytes:
        raise CorruptObject(f"{graft.place} is a view that leaves its array.")
    raw = (base if base.flags.c_contiguous else base.T).reshape(-1).view(np.uint8)
    view: NDArray[Any] = np.ndarray(
        tuple(node.s), dtype, buffer=raw.data, offset=node.off, strides=tuple(node.st)
    )
    return graft.bind(node, view)


def _dense(graft: Graft, node: View, twin: object) -> Any:
    """A view of something that is not in the state: its own values are, and they go where the twin's are."""
    content = _content(graft, node)
    fits = (
        isinstance(twin, np.ndarray)
        and twin.dtype == content.dtype
        and twin.shape == content.shape
        and twin.flags.writeable
    )
    own = graft.use(node, twin, fits=fits)
    if own is MISSING:
        return graft.bind(node, np.array(content, copy=True))
    graft.write(copy_array, own, content)
    return own


def _same_layout(twin: NDArray[Any], base: NDArray[Any], node: View, dtype: np.dtype[Any]) -> bool:
    offset = twin.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return (
        twin.shape == tuple(node.s)
        and twin.strides == tuple(node.st)
        and twin.dtype == dtype
        and offset == node.off
    )

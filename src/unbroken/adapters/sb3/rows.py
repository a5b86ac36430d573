"""The rows of a saved replay buffer, written into one for another number of environments.

SB3's buffers hold a table of steps by environments. The transitions are taken in the order in which they
were collected and written line by line into the new table, the newest ones as far as they fit. Of a
sample nothing depends on which environment a transition came from, so each is as good there as before.

Not promised: buffers whose samples run along one environment (`HerReplayBuffer`, `NStepReplayBuffer`, and
all with `optimize_memory_usage`), and classes that SB3 does not know. They are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import CorruptObject
from unbroken.state import dtypes
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Array, Dict, Identity, Object, Ref, Value, View, class_name
from unbroken.state.snapshot import Component, Snapshot

PLACE = "model/replay_buffer"
_BUFFERS = "stable_baselines3.common.buffers"
_PLAIN = frozenset({f"{_BUFFERS}:ReplayBuffer", f"{_BUFFERS}:DictReplayBuffer"})
_AT_ONCE = 1 << 24
"""Bytes that are copied at a time."""


def carry_over(plan: Graft, saved: Snapshot, model: Any) -> None:
    """Plan to fill the buffer of `model` with the rows that were saved; say how many, or why not."""
    buffer = model.replay_buffer

    def say(level: str, detail: str) -> None:
        plan.differences.append(Difference(level, PLACE, detail))

    name = class_name(type(buffer))
    if name not in _PLAIN or buffer.optimize_memory_usage:
        what = type(buffer).__qualname__
        if name in _PLAIN:
            what += " with optimize_memory_usage"
        say(
            "error",
            f"the rows of a {what} belong to the environment that they came from, and cannot be carried over"
            " to another number of environments",
        )
        return
    found = _found(saved)
    if found is None:
        say("error", "was not saved in a way that its rows can be read from.")
        return
    component, node, numbers = found
    rows = _Rows(node, component, numbers)
    if rows.columns < 1 or any(table.shape[:2] != rows.shape for _, table in rows.tables):
        raise CorruptObject(f"{PLACE} holds tables of different sizes.")
    tables: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for key, source in rows.tables:
        target = _attribute(buffer, key)
        if target is None or target.shape[2:] != source.shape[2:] or target.dtype != source.dtype:
            say("error", f"{key} was saved as {source.dtype}{list(source.shape)}, which does not fit.")
            return
        tables.append((target, source))
    lines = min(rows.used * rows.columns // buffer.n_envs, buffer.buffer_size)
    plan.write(_fill, buffer, tables, rows, lines)
    held, taken = rows.used * rows.columns, lines * buffer.n_envs
    if held == taken:
        say("fresh", f"all {held:,} transitions are carried over")
    else:
        say("lost", f"the newest {taken:,} of {held:,} transitions are carried over")


class _Rows:
    """What was saved of one buffer: its tables, and in which order their lines were written."""

    def __init__(self, node: Object, component: Component, numbers: dict[int, Identity]) -> None:
        self.tables = list(_tables(node, component, numbers))
        pos, full, size = (node.a.get(name) for name in ("pos", "full", "buffer_size"))
        columns = node.a.get("n_envs")
        if (
            type(pos) is not int
            or type(full) is not bool
            or type(size) is not int
            or type(columns) is not int
        ):
            raise CorruptObject(f"{PLACE} does not say which of its rows are in use.")
        self.columns = columns
        self.used = size if full else pos
        self.first = pos if full else 0
        """The oldest line."""
        self.size = size
        held = min((table.shape[0] for _, table in self.tables), default=0)
        self.shape = (held, columns)
        if not self.tables or held < self.used or not 0 <= pos < max(1, size):
            raise CorruptObject(f"{PLACE} holds {held} rows and speaks of {self.used}.")

    def lines(self, transitions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return in which line and column the transitions of these numbers stand, the oldest is 0."""
        return (transitions // self.columns + self.first) % self.size, transitions % self.columns


def _fill(buffer: Any, tables: list[tuple[NDArray[Any], NDArray[Any]]], rows: _Rows, lines: int) -> None:
    columns = buffer.n_envs
    skipped = rows.used * rows.columns - lines * columns
    for target, source in tables:
        step = max(1, _AT_ONCE // max(1, math.prod(target.shape[1:]) * target.itemsize))
        for start in range(0, lines, step):
            end = min(lines, start + step)
            numbers = np.arange(skipped + start * columns, skipped + end * columns)
            target[start:end] = source[rows.lines(numbers)].reshape(end - start, columns, *source.shape[2:])
    buffer.full = lines == buffer.buffer_size
    buffer.pos = 0 if buffer.full else lines


def _found(saved: Snapshot) -> tuple[Component, Object, dict[int, Identity]] | None:
    for component in saved.components.values():
        node = component.roots.get(PLACE)
        if isinstance(node, Object):
            numbers = {one.id: one for one in _identities(node) if one.id}
            return component, node, numbers
    return None


def _identities(node: Object) -> Iterator[Identity]:
    for value in node.a.values():
        inner = value.v.values() if isinstance(value, Dict) and value.v is not None else ()
        for one in (value, *inner):
            if isinstance(one, View) and isinstance(one.of, Identity):
                yield one.of
            if isinstance(one, Identity):
                yield one


def _tables(
    node: Object, component: Component, numbers: dict[int, Identity]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, value in node.a.items():
        parts = value.v.items() if isinstance(value, Dict) and value.v is not None else [("", value)]
        for key, part in parts:
            array = _array(part, component, numbers)
            if array is not None and array.ndim > 1:
                yield f"{name}/{key}" if key else name, array


def _attribute(buffer: Any, key: str) -> NDArray[Any] | None:
    name, _, inner = key.partition("/")
    value = getattr(buffer, name, None)
    if inner:
        value = value.get(inner) if isinstance(value, dict) else None
    return value if isinstance(value, np.ndarray) else None


def _array(value: Value, component: Component, numbers: dict[int, Identity]) -> NDArray[Any] | None:
    """Return a saved array without a copy; of one that was not full only the written rows. None: it is none."""
    if isinstance(value, Ref):
        return _array(cast("Value", numbers.get(value.to)), component, numbers)
    if isinstance(value, View) and value.of is not None:
        base = _array(value.of, component, numbers)
        if base is None or not base.flags.c_contiguous:
            return None
        try:
            return np.ndarray(value.s, dtypes.parse(value.d), base.data, value.off, value.st)
        except (TypeError, ValueError) as error:
            raise CorruptObject(f"{PLACE} holds a view that leaves its array.") from error
    if not isinstance(value, (Array, View)):
        return None
    dtype = dtypes.parse(value.d)
    written = value.rows if isinstance(value, Array) else -1
    shape = (written, *value.s[1:]) if written >= 0 else tuple(value.s)
    content = component.content(value.b) if value.b >= 0 else np.frombuffer(value.data, np.uint8)
    if min(shape, default=0) < 0 or content.nbytes != dtype.itemsize * math.prod(shape):
        raise CorruptObject(f"{PLACE} holds {content.nbytes} bytes for {value.d}{list(shape)}.")
    if isinstance(value, Array) and value.o == "F" and written < 0:
        return content.view(dtype).reshape(shape, order="F")
    return content.view(dtype).reshape(shape)

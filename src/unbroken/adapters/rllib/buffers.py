"""Replay buffers of episodes: what they keep as long Python lists of numbers is written as arrays.

A list of a million index tuples would be a million nodes of a document. What the numbers are is kept
exactly, and whether each is Python's or numpy's, since that decides in which precision the next one is
computed.

Not promised: lists that a user's own buffer adds. They are walked, which is slower and no less exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbroken.adapters.rllib.episodes import names_without, rows
from unbroken.errors import CorruptObject
from unbroken.state.nodes import Value, class_name
from unbroken.state.policy import Captor

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_BUFFER = "ray.rllib.utils.replay_buffers.episode_replay_buffer:EpisodeReplayBuffer"
_TREE = "ray.rllib.execution.segment_tree:SegmentTree"

_KINDS: tuple[type, ...] = (float, int, np.float64, np.float32)
_BY_KIND = {kind: i for i, kind in enumerate(_KINDS)}


class TreeCaptor:
    """Captor of a segment tree: its priorities as one array."""

    def attributes(self, obj: Any) -> frozenset[str] | None:
        return names_without(obj, {"value"}) if self._fits(obj) else None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        if not self._fits(obj):
            return {}
        kinds = np.fromiter(map(_BY_KIND.__getitem__, map(type, obj.value)), np.uint8, len(obj.value))
        return {
            "values": walk.child("<values>", np.array(obj.value, np.float64)),
            "kinds": walk.child("<kinds>", kinds),
        }

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        values, kinds = (_array(graft, extra, name, 1) for name in ("values", "kinds"))
        graft.write(_fill_tree, obj, values, kinds)

    def _fits(self, obj: Any) -> bool:
        """Whether every number is of a known kind, and no less exact as a double."""
        kinds = set(map(type, obj.value))
        return kinds <= _BY_KIND.keys() and (
            int not in kinds or all(type(v) is not int or abs(v) < 2**53 for v in obj.value)
        )


def _fill_tree(tree: Any, values: NDArray[np.float64], kinds: NDArray[np.uint8]) -> None:
    if len(values) != len(kinds) or (len(kinds) and int(kinds.max()) >= len(_KINDS)):
        raise CorruptObject("The priorities of a replay buffer are of no known kind.")
    tree.value = [_KINDS[kind](value) for value, kind in zip(values.tolist(), kinds.tolist(), strict=True)]


def _pairs(table: dict[int, int]) -> Iterable[tuple[int, int]]:
    return table.items()


def _table(rows: list[list[int]]) -> dict[int, int]:
    return {row[0]: row[1] for row in rows}


def _tuples(rows: list[list[int]]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in rows]


def _numbers(rows: list[list[int]]) -> deque[int]:
    return deque(row[0] for row in rows)


def _singles(nodes: Iterable[int]) -> Iterable[tuple[int]]:
    return ((node,) for node in nodes)


_LISTS: dict[str, tuple[Callable[[Any], Iterable[tuple[int, ...]]], Callable[[list[list[int]]], Any]]] = {
    "_indices": (iter, _tuples),
    "_tree_idx_to_sample_idx": (_pairs, _table),
    "_free_nodes": (_singles, _numbers),
}
"""Attribute -> how it becomes rows of an array, and how rows become the attribute again."""


class BufferCaptor:
    """Captor of an episode buffer: where each of its steps stands, as arrays."""

    def attributes(self, obj: Any) -> frozenset[str]:
        rows.hold(obj)
        return names_without(obj, self._tables(obj))

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        rows.release()
        found = self._tables(obj)
        return {name: walk.child(f"<{name}>", table) for name, table in found.items()}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        for name in extra:
            if name not in _LISTS:
                graft.error(f"a replay buffer has no table {name}.")
                continue
            graft.write(_fill_table, obj, name, _array(graft, extra, name, 2))

    def _tables(self, obj: Any) -> dict[str, NDArray[np.int64]]:
        """Return what is a table of whole numbers, with rows of one length."""
        found: dict[str, NDArray[np.int64]] = {}
        for name, (rows_of, _) in _LISTS.items():
            held = getattr(obj, name, None)
            if not isinstance(held, (list, dict, deque)) or (isinstance(held, deque) and held.maxlen):
                continue
            table = list(rows_of(held))
            if set(map(type, chain.from_iterable(table))) <= {int} and len(set(map(len, table))) <= 1:
                found[name] = np.array(table, np.int64).reshape(len(table), -1 if table else 0)
        return found


def _fill_table(buffer: Any, name: str, table: NDArray[np.int64]) -> None:
    setattr(buffer, name, _LISTS[name][1](table.tolist()))


def _array(graft: Graft, extra: dict[str, Value], name: str, ndim: int) -> NDArray[Any]:
    found = graft.value(f"<{name}>", extra.get(name))
    if not isinstance(found, np.ndarray) or found.ndim != ndim:
        graft.error(f"{name} of a replay buffer is no array.")
        return np.zeros((0,) * ndim)
    return found


_tree, _buffer = TreeCaptor(), BufferCaptor()


def buffers_rule(obj: object) -> Captor | None:
    """Return the captor of an episode buffer or of its tree, None for anything else."""
    names = {class_name(cls) for cls in type(obj).__mro__}
    return _tree if _TREE in names else _buffer if _BUFFER in names else None

"""Replay buffers of a checkpoint as columns, their rows from the oldest on.

Those of Stable-Baselines3 and of this package are known. Of a buffer of the user's own its arrays of one length are
the columns. Where its next row goes is told by attributes of usual names; where these leave it open, the rows
come as they are stored, and the document says so.

Not promised: buffers that are lists of objects, and frames that stand in a buffer once for two observations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unbroken.adapters.neutral.directory import Turned
from unbroken.format.neutral import Column, Left, Replay
from unbroken.inspection.neutral.cursor import Checkpoint, Cursor
from unbroken.state.nodes import Deque, List, ObjectArray, View

COMPONENT = "replay_buffer"
_SB3 = "stable_baselines3.common.buffers:ReplayBuffer"
_SB3_KNOWN = {_SB3, "stable_baselines3.common.buffers:DictReplayBuffer"}
_HER = "stable_baselines3.her.her_replay_buffer:HerReplayBuffer"
_ROLES = {
    "obs": ("obs", "observation", "observations", "state", "states"),
    "next_obs": (
        "next_obs",
        "next_observation",
        "next_observations",
        "next_state",
        "next_states",
        "following",
    ),
    "actions": ("action", "actions", "act", "acts"),
    "rewards": ("reward", "rewards", "rew", "rews"),
    "terminated": ("terminated", "terminations", "terminal", "terminals"),
    "truncated": ("truncated", "truncations", "timeout", "timeouts"),
    "dones": ("done", "dones"),
}
_ROLE = {name: role for role, names in _ROLES.items() for name in names}
_POSITION = ("position", "pos", "ptr", "pointer", "index", "idx", "cursor", "head", "next_index")
_SIZE = ("size", "count", "length", "n", "num", "filled")
_ADDED = ("added", "adds", "total", "num_added")


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer of a checkpoint with its rows, by the file that each column goes to."""

    record: Replay
    columns: dict[str, Turned]


@dataclass(frozen=True, slots=True)
class _Ring:
    """Where the rows of a buffer lie."""

    capacity: int
    rows: int
    first: int
    """The oldest row."""
    position: int
    order: Literal["oldest-first", "as-stored"] = "oldest-first"


@dataclass(frozen=True, slots=True)
class _Array:
    name: str
    key: str
    values: NDArray[Any]
    role: str = ""
    first: int | None = None
    """The row that stands beside the oldest one, where it is another."""


def buffers_of(checkpoint: Checkpoint) -> tuple[list[Held], list[Left]]:
    """Return every buffer, and what of buffers cannot be written as columns."""
    held: list[Held] = []
    left: list[Left] = []
    for root, at in _found(checkpoint):
        name = _free(root.rpartition("/")[2] or root, {one.record.name for one in held})
        sb3 = at.cls in _SB3_KNOWN or at.cls == _HER
        found = _sb3(at, root) if sb3 else _declared(at, root)
        if at.cls == _HER:
            left.append(
                Left(what=f"{root}: where its episodes begin", why="goals are drawn anew only by HER")
            )
        if isinstance(found, Left):
            left.append(found)
        else:
            left += _unread(at, root)
            held.append(_laid_out(at, root, name, *found))
    return held, left


def _unread(at: Cursor, root: str) -> Iterator[Left]:
    """Yield the arrays of a buffer that are no columns though they may hold rows."""
    for name, one in at.attributes():
        if isinstance(one.value, (View, ObjectArray, List, Deque)) and name in _ROLE:
            yield Left(what=f"{root}/{name}", why="it is no array of its own, but a view or a list")
        elif (found := one.array()) is not None and found.dtype == "bfloat16":
            yield Left(what=f"{root}/{name}", why="it is of bfloat16, which NumPy's files do not have")


def _found(checkpoint: Checkpoint) -> Iterator[tuple[str, Cursor]]:
    """Yield what is captured as a buffer, and every other object that has the columns of one."""
    buffers = checkpoint.snapshot.components.get(COMPONENT)
    for root in buffers.roots if buffers is not None else ():
        yield root, checkpoint.root(root)
    for at in checkpoint.objects():
        if at.component.name != COMPONENT:
            roles = {
                _ROLE[name] for name, one in at.attributes() if name in _ROLE and one.array() is not None
            }
            if roles >= {"obs", "actions", "rewards"}:
                yield at.place, at


def _free(name: str, taken: set[str]) -> str:
    name = "".join(
        letter if (letter.isalnum() and letter.isascii()) or letter in "_-" else "_" for letter in name
    )
    while name in taken:
        name += "_"
    return name


def _laid_out(at: Cursor, place: str, name: str, ring: _Ring, arrays: list[_Array], envs: int) -> Held:
    columns: list[Column] = []
    turned: dict[str, Turned] = {}
    for array in arrays:
        own = f"{array.role or array.name}.{array.key}" if array.key else array.role or array.name
        file = f"replay/{name}/{_free(own.replace('.', '-'), {c.file.rpartition('/')[2][:-4] for c in columns})}.npy"
        first = ring.first if array.first is None else array.first
        turned[file] = Turned(array.values, first, ring.rows)
        columns.append(
            Column(
                name=array.name,
                key=array.key,
                role=array.role,
                file=file,
                dtype=array.values.dtype.name,
                shape=list(turned[file].shape),
            )
        )
    record = Replay(
        name=name,
        place=place,
        class_=at.cls,
        rows=ring.rows,
        columns=columns,
        order=ring.order,
        environments=envs,
        capacity=ring.capacity,
        position=ring.position,
    )
    return Held(record, turned)


def _sb3(at: Cursor, place: str) -> tuple[_Ring, list[_Array], int] | Left:
    arrays = list(
        _arrays(at, ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"))
    )
    if not arrays:
        return Left(what=place, why="its rows are no arrays")
    capacity, position = len(arrays[0].values), int(at.attr("pos").number() or 0)
    full = at.attr("full").plain() is True
    ring = _Ring(capacity, capacity if full else position, position if full else 0, position)
    if at.attr("optimize_memory_usage").plain() is True:
        # The next observation lies in the row behind its observation; the newest one's has overwritten the oldest.
        if full:
            ring = replace(ring, rows=capacity - 1, first=(position + 1) % capacity)
        arrays += [
            _Array("next_observations", one.key, one.values, "next_obs", (ring.first + 1) % capacity)
            for one in arrays
            if one.name == "observations"
        ]
    found = {one.name: one for one in arrays if not one.key}
    dones, timeouts = found.get("dones"), found.get("timeouts")
    known = [one for one in arrays if one.name not in ("dones", "timeouts")]
    if dones is not None and timeouts is not None and _are_flags(dones, timeouts):
        ended, late = dones.values != 0, timeouts.values != 0
        known += [
            _Array("dones", "", ended & ~late, "terminated"),
            _Array("timeouts", "", late, "truncated"),
        ]
    else:
        known += [one for one in (dones, timeouts) if one is not None]
    return ring, known, int(at.attr("n_envs").number() or 1)


def _are_flags(dones: _Array, timeouts: _Array) -> bool:
    """Whether two flags say all that these columns hold: nothing runs out of time without an end."""
    ended, late = dones.values, timeouts.values
    return bool(np.isin(ended, (0, 1)).all() and np.isin(late, (0, 1)).all() and not (late > ended).any())


def _declared(at: Cursor, place: str) -> tuple[_Ring, list[_Array], int] | Left:
    arrays = [one for one in _arrays(at) if one.values.ndim]
    longest: dict[int, list[_Array]] = {}
    for one in arrays:
        longest.setdefault(len(one.values), []).append(one)
    # Of several lengths the one that holds rows: a buffer's columns are many, its trees and tables are few.
    columns = max(
        longest.values(), key=lambda some: (sum(1 for one in some if one.role), len(some)), default=[]
    )
    if not columns or not len(columns[0].values):
        return Left(what=place, why=f"a {at.cls.rpartition(':')[2] or 'buffer'} without arrays of one length")
    return _ring_of(at, len(columns[0].values)), columns, 0


def _ring_of(at: Cursor, capacity: int) -> _Ring:
    numbers = {
        name: int(number)
        for name, one in at.attributes()
        if (number := one.number()) is not None and float(number).is_integer()
    }
    full = at.attr("full").plain()
    added = [numbers[name] for name in _ADDED if name in numbers]
    position = [numbers[name] for name in _POSITION if name in numbers]
    size = [numbers[name] for name in _SIZE if name in numbers]
    if len(added) == 1 and len(position) <= 1:
        rows, at_row = min(added[0], capacity), added[0] % capacity
        if position and position[0] % capacity != at_row:
            return _Ring(capacity, capacity, 0, 0, "as-stored")
    elif len(position) == 1 and isinstance(full, bool):
        rows, at_row = capacity if full else position[0], position[0] % capacity
    elif len(position) == 1 and len(size) == 1:
        rows, at_row = size[0], position[0] % capacity
    else:
        return _Ring(capacity, capacity, 0, 0, "as-stored")
    if not 0 <= rows <= capacity or (rows < capacity and at_row != rows):
        return _Ring(capacity, capacity, 0, 0, "as-stored")
    return _Ring(capacity, rows, at_row if rows == capacity else 0, at_row)


def _arrays(at: Cursor, names: tuple[str, ...] = ()) -> Iterator[_Array]:
    """Yield the arrays of an object, and those in dicts of it, in the order of `names` if some are given."""
    held = dict(at.attributes())
    for name in names or held:
        if name not in held:
            continue
        for key, one in [("", held[name]), *held[name].items()]:
            found = one.array()
            if found is None or not found.values.ndim or found.dtype == "bfloat16":
                continue
            role = _ROLE.get(key if key and name in ("rows", "data", "columns", "storage") else name, "")
            if key and name in ("rows", "data", "columns", "storage"):
                yield _Array(key, "", found.numeric, role)
            else:
                yield _Array(name, key, found.numeric, role)

"""Ring buffers as one concept: which arrays are rows of a ring, and how many rows were ever written.

A replay buffer of 28 GB that is 1 % full costs 1 %: rows that were never written are neither read nor
saved, and stay as the freshly built twin has them. A buffer says what it is in one line in its class,

    __unbroken_ring__ = Ring(("observations", "actions", "rewards"), position="pos", full="full")

and may count in another way (`size=`, `adds=`). Then a save also costs only the rows that are new since
the last checkpoint: they are told by the position, together with the number of rows added, which is read
from `adds` or counted at the method that adds. Without a position, or without either count, all written rows
are captured each time.

The replay buffers of Stable-Baselines3 are known. A subclass of theirs with an `add` of its own is not
guessed at: it is saved whole until it declares itself; `__unbroken_ring__ = None` says that a class is no
ring.

Rows are left out only where it is sure that nobody needs them. A buffer whose position is not at the end of the
rows that it names as used (a queue that gives rows back, a count of calls) is saved with all its rows, and so is
an array that somebody else in the state holds too, or a view of it: what others write into it, no ring knows.

Not promised: rows that somebody writes beyond the last that the buffer names as written, through something that
is not in the state, or through a tensor over the memory of a numpy array. Written rows that are changed
behind its back are found after some saves: see `audit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.errors import ConfigError, NotCapturable
from unbroken.state.nodes import class_name
from unbroken.state.policy import Policy

DECLARATION = "__unbroken_ring__"


@dataclass(frozen=True, slots=True)
class Ring:
    """How a class keeps its ring: all but `arrays` and `ahead` are names of attributes.

    `arrays` name arrays, tensors or dicts of them whose first dimension is the capacity. How much was
    written is told by `adds` (rows added since the start, never set back), by `size` (rows in use, at most the
    capacity) or by `position` together with `full`. `ahead` gives, for an array that the buffer writes
    further than its position, how many rows further. `anywhere` names those of `arrays` of which any row
    may change at any time (priorities): they are captured whole. `method` is the one that adds rows; calls
    of it are watched.

    Raises:
        ConfigError: arrays, or what tells how many rows were added, are missing or not of the kind that is wanted.

    >>> Ring(("obs", "act"), position="ptr", size="size").size
    'size'
    """

    arrays: tuple[str, ...]
    position: str = ""
    full: str = ""
    size: str = ""
    adds: str = ""
    ahead: Mapping[str, int] = field(default_factory=dict)
    anywhere: tuple[str, ...] = ()
    method: str = "add"

    def __post_init__(self) -> None:
        names: object = self.arrays
        if not isinstance(names, tuple) or not names:  # a lone string would be read as its letters
            raise ConfigError(
                "A ring needs the names of its arrays, as a tuple.",
                hint='Write arrays=("observations",), with a comma for a single one.',
            )
        if not (self.adds or self.size or (self.position and self.full)):
            raise ConfigError(
                "A ring needs `adds`, `size`, or `position` with `full`.",
                hint="Name the attribute that tells how many rows are in use.",
            )
        anywhere: object = self.anywhere
        if not isinstance(anywhere, tuple) or not set(self.anywhere) <= set(self.arrays):
            raise ConfigError(
                f"anywhere={self.anywhere!r} names no arrays of the ring.",
                hint="It is a tuple of some of those in `arrays`.",
            )
        ahead: object = self.ahead
        if not isinstance(ahead, Mapping) or not set(self.ahead) <= set(self.arrays):
            raise ConfigError(
                f"ahead={ahead!r} names no arrays of the ring.",
                hint='Write ahead={"observations": 1}, with names of those in `arrays`.',
            )
        if not all(type(rows) is int and rows >= 0 for rows in self.ahead.values()):
            raise ConfigError(
                f"ahead={ahead!r} must say numbers of rows.", hint='Write ahead={"observations": 1}.'
            )


@dataclass(frozen=True, slots=True)
class RingState:
    """A ring at one moment."""

    capacity: int
    position: int
    """The row that is written next, or -1 where the buffer does not say."""
    full: bool
    adds: int | None
    """Rows added since the start, where the buffer counts them: position and `full` are the same after
    exactly one lap, so that only this tells an unchanged ring from one written all over."""
    written: Mapping[str, int]
    """Attribute -> leading rows ever written."""


_SB3_ARRAYS = ("actions", "dones", "infos", "next_observations", "observations", "rewards", "timeouts")
_SB3_BASE = "stable_baselines3.common.buffers:ReplayBuffer"
_SB3_PACKAGES = frozenset({"stable_baselines3", "sb3_contrib"})


def ring_of(buffer: object) -> Ring | None:
    """Return how `buffer` keeps its ring, or None if it is none."""
    cls = type(buffer)
    declared: object = getattr(cls, DECLARATION, _UNDECLARED)
    if declared is not _UNDECLARED:
        if declared is not None and not isinstance(declared, Ring):
            raise ConfigError(f"{class_name(cls)}.{DECLARATION} is no Ring.", hint="Use unbroken.Ring(...).")
        return declared
    return _sb3_ring(buffer) if _is_sb3(cls) else None


_UNDECLARED = object()
_known: dict[type, bool] = {}


def _is_sb3(cls: type) -> bool:
    known = _known.get(cls)
    if known is None:
        add: object = getattr(cls, "add", None)
        package = str(getattr(add, "__module__", "")).partition(".")[0]
        named = any(class_name(base) == _SB3_BASE for base in cls.__mro__)
        known = _known[cls] = named and package in _SB3_PACKAGES
    return known


def _sb3_ring(buffer: Any) -> Ring:
    arrays = tuple(name for name in _SB3_ARRAYS if isinstance(getattr(buffer, name, None), _rows_kinds()))
    # With optimize_memory_usage the next observation lies in the row after its observation.
    ahead = {"observations": 1} if buffer.optimize_memory_usage else {}
    return Ring(arrays, position="pos", full="full", ahead=ahead)


def _rows_kinds() -> tuple[type, ...]:
    import numpy as np

    return (np.ndarray, dict)


def read_ring(buffer: Any) -> RingState | None:
    """Return the state of the ring that `buffer` keeps, or None if it is none.

    Raises NotCapturable if the buffer is not what its class declares.
    """
    ring = ring_of(buffer)
    if ring is None:
        return None
    capacities = {n for name in ring.arrays for n in _lengths(buffer, name)}
    if len(capacities) != 1:
        lengths = ", ".join(map(str, sorted(capacities))) or "none"
        raise _not_as_declared(buffer, f"arrays of one length; they have {lengths}")
    (capacity,) = capacities
    if not capacity:
        raise _not_as_declared(buffer, "room for one row at least")
    position = _count(buffer, ring.position) if ring.position else -1
    adds = _count(buffer, ring.adds) if ring.adds else None
    if adds is not None:
        used = min(adds, capacity)
    elif ring.size:
        used = _count(buffer, ring.size)
    else:
        used = capacity if getattr(buffer, ring.full) else position
    if not 0 <= used <= capacity:
        raise _not_as_declared(buffer, f"at most {capacity} rows; it claims {used}")
    if used < capacity and position >= 0 and position % capacity != used:
        used = capacity  # rows in use end at the position and begin somewhere, or the count is not of rows
    used = _with_old_episodes(buffer, used, capacity)
    written = {name: min(used + ring.ahead.get(name, 0), capacity) for name in ring.arrays}
    written |= dict.fromkeys(ring.anywhere, capacity)
    return RingState(capacity, position, used == capacity, adds, written)


def is_buffer(name: str, value: object) -> bool:
    """Whether what is called `name` is a replay buffer, by its declaration or by what it is called."""
    return ring_of(value) is not None or "buffer" in f"{name} {type(value).__name__}".lower()


def _lengths(buffer: Any, name: str) -> set[int]:
    held: Any = getattr(buffer, name, None)
    arrays: list[Any] = list(held.values()) if isinstance(held, dict) else [held]
    shapes: list[tuple[int, ...]] = [getattr(array, "shape", ()) for array in arrays]
    if not all(shapes):
        raise _not_as_declared(buffer, f"an array or a dict of arrays {name!r}")
    return {int(shape[0]) for shape in shapes}


def _count(buffer: Any, name: str) -> int:
    value: Any = getattr(buffer, name, None)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise _not_as_declared(buffer, f"a number {name!r}") from None


def _not_as_declared(buffer: object, what: str) -> NotCapturable:
    name = class_name(type(buffer))
    return NotCapturable(
        f"{name} declares itself a ring and should have {what}.",
        hint=f"Correct {name.partition(':')[2]}.{DECLARATION}, or set it to None to save the buffer whole.",
    )


def _with_old_episodes(buffer: Any, used: int, capacity: int) -> int:
    # HER samples by the lengths of episodes, which a reset() of the buffer leaves where they are: rows
    # beyond the position can then still be drawn.
    lengths: Any = getattr(buffer, "ep_length", None)
    if used < capacity and lengths is not None and _is_sb3(type(buffer)) and lengths[used:].any():
        return capacity
    return used


def written_rows(buffer: object) -> Mapping[str, int] | None:
    """Return attribute -> leading rows ever written, or None for what is no ring. For `Policy.rings`."""
    state = read_ring(buffer)
    return None if state is None else state.written


POLICY = Policy(rings=(written_rows,))

"""What an action replay needs, as plain data: resets, the actions since, and what they gave.

A tape is written as one line of JSON (resets are few and small) and one array of actions. Nothing in it
is executed or imported when it is read. A tape that does not lead to the state of the environment says so
by having no digest.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from unbroken.capture.values import NUMBERS, Unrecordable, from_data, number, to_data
from unbroken.errors import CorruptObject


class Reset(msgspec.Struct, omit_defaults=True):
    """One `reset`: its arguments, and what it found. `at` counts the actions before it."""

    at: int
    seed: int | None = None
    options: Any = None
    generator: Any = None
    """State of the environment's own generator before it; None: it had none, or was re-seeded."""
    settings: dict[str, Any] = {}
    """The environment's attributes before it, as far as they are values: what outlives an episode, or a
    curriculum has set. Like the options and the generator they are kept as `values` writes them."""


class _Header(msgspec.Struct):
    resets: list[Reset]
    count: int
    form: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    whole: bool
    after: Any = None
    items: list[Any] = []


def generator_state(env: Any) -> Any:
    """Return the state of an environment's own generator as data, or None if it has none yet."""
    generator = vars(env).get("_np_random")
    if generator is None:
        return None
    if not isinstance(generator, np.random.Generator):
        raise Unrecordable(f"a generator of class {type(generator).__qualname__}")
    return to_data(generator.bit_generator.state)


def set_generator(env: Any, data: Any) -> None:
    """Bring an environment's own generator to a state written by `generator_state`, in place."""
    state = from_data(data)
    kind = state.get("bit_generator") if isinstance(state, dict) else None
    own = env.np_random  # made on first use
    if type(own.bit_generator).__name__ != kind:
        raise CorruptObject(f"The environment's generator is no {kind}.")
    own.bit_generator.state = state


class Witness:
    """Rolling digest of everything that an environment returned."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def see(self, *values: Any) -> None:
        for value in values:
            self._see(value)

    def _see(self, value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=repr):
                self._hash.update(repr(key).encode())
                self._see(value[key])
        elif isinstance(value, (tuple, list)):
            self._hash.update(f"[{len(value)}]".encode())
            for item in value:
                self._see(item)
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in f"{NUMBERS}SU":
            array = np.ascontiguousarray(value)
            self._hash.update(f"{array.dtype.str}{array.shape}".encode())
            self._hash.update(array.tobytes())
        elif isinstance(value, float):
            self._hash.update(value.hex().encode())
        else:
            self._hash.update(repr(value).encode())

    def hexdigest(self) -> str:
        return self._hash.copy().hexdigest()


@dataclass(slots=True)
class Tape:
    """Resets and actions, in order. `whole`: since the environment was built, not since a reset."""

    whole: bool = False
    resets: list[Reset] = field(default_factory=list[Reset])
    actions: list[Any] = field(default_factory=list[Any])
    witness: Witness = field(default_factory=Witness)

    def add(self, action: Any) -> None:
        if isinstance(action, np.ndarray):
            if action.dtype.kind not in NUMBERS:
                raise Unrecordable(f"an action of dtype {action.dtype}")
            self.actions.append(action.copy())
        elif action is None or isinstance(action, (bool, int, float, np.generic)):
            self.actions.append(action)
        elif isinstance(action, (tuple, list, dict)):
            self.actions.append(copy.deepcopy(action))
        else:
            raise Unrecordable(f"an action of class {type(action).__qualname__}")

    def write(self, after: Any, *, exact: bool = True) -> tuple[str, NDArray[Any]]:
        """Return the header and the bytes of the actions. `after`: the generator at the end. `exact`:
        whether they lead to the state of the environment; else there is nothing to compare with."""
        form, array = _stack(self.actions)
        items = [] if array is not None else [to_data(action) for action in self.actions]
        if array is None:
            array = np.empty(0, np.uint8)
        header = _Header(
            resets=self.resets, count=len(self.actions), form=form, dtype=array.dtype.str,
            shape=array.shape, digest=self.witness.hexdigest() if exact else "", whole=self.whole,
            after=after, items=items,
        )  # fmt: skip
        # Through Python's own JSON: msgspec knows no integers beyond 64 bits, and options may hold some.
        plain = msgspec.structs.asdict(header)
        plain["resets"] = [msgspec.structs.asdict(reset) for reset in self.resets]
        return json.dumps(plain), np.frombuffer(array.tobytes(), np.uint8)


def _stack(actions: list[Any]) -> tuple[str, NDArray[Any] | None]:
    kinds = set(map(type, actions))
    if len(kinds) != 1:
        return "items", None
    kind = kinds.pop()
    if kind is np.ndarray:
        if len({(a.dtype, a.shape) for a in actions}) == 1:
            return "array", np.stack(actions)
    elif issubclass(kind, np.generic):
        if len({a.dtype for a in actions}) == 1 and actions[0].dtype.kind in NUMBERS:
            return "scalar", np.array(actions)
    elif kind is int and all(-(2**63) <= a < 2**63 for a in actions):
        return "int", np.array(actions, dtype="<i8")
    return "items", None


@dataclass(frozen=True, slots=True)
class Recording:
    """A tape that was read back: what to do, and the digest that it must give, unless it is empty."""

    resets: tuple[Reset, ...]
    actions: tuple[Any, ...]
    digest: str
    whole: bool
    after: Any


def read(text: str, data: NDArray[np.uint8]) -> Recording:
    """Return what `Tape.write` wrote. Raises CorruptObject."""
    try:
        header = msgspec.convert(json.loads(text), _Header)
        if header.form == "items":
            actions: tuple[Any, ...] = tuple(from_data(item) for item in header.items)
        else:
            dtype = number(header.dtype)
            if len(data) != dtype.itemsize * math.prod(header.shape):
                raise CorruptObject("A recording of actions has another length than it says.")
            array = data.view(dtype).reshape(header.shape).copy()
            actions = tuple(array.tolist()) if header.form == "int" else tuple(array)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise CorruptObject(f"A recording of actions cannot be read: {error}.") from error
    if len(actions) != header.count or any(not 0 <= r.at <= header.count for r in header.resets):
        raise CorruptObject("A recording of actions does not hold as many as it says.")
    return Recording(tuple(header.resets), actions, header.digest, header.whole, header.after)

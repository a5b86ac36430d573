"""Values as JSON data and back, every bit of them: what a tape keeps of an environment beside its actions.

Numbers, text, bytes, numpy's scalars and arrays, generators, and containers of these, each with its own
class: a tuple comes back as a tuple, a float32 as a float32. JSON that stands for itself is left as it is;
everything else is a dict with one key, the kind with an `=` before it. Nothing is imported or called by name.

Not promised: values shared between two places, which come back as two; derived classes, which are refused.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from unbroken.errors import CorruptObject

NUMBERS = "fiub"
"""Kinds of dtypes whose bytes are the value."""

DEEPEST = 20
"""Levels of containers in a value."""

_PLAIN = (bool, int, str, type(None))
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


class Unrecordable(Exception):
    """A value that a tape cannot hold; the text says which."""


def number(name: str) -> np.dtype[Any]:
    """Return the dtype of this name. Raises ValueError if it is none of numbers."""
    dtype = np.dtype(name)
    if dtype.kind not in NUMBERS:
        raise ValueError(f"{name} is no number")
    return dtype


def to_data(value: Any, *, largest: int | None = None) -> Any:
    """Return `value` as JSON data. Raises Unrecordable for a class that has no place here, and for more than
    `largest` numbers and characters."""
    return _Writer(largest).write(value, 0)


class _Writer:
    def __init__(self, largest: int | None) -> None:
        self._left = math.inf if largest is None else largest

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._left -= (
            len(value) if kind in (str, bytes, bytearray) else value.size if kind is np.ndarray else 1
        )
        if self._left < 0 or depth > DEEPEST:
            raise Unrecordable(f"a {kind.__qualname__} of that size")
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return [self.write(item, depth + 1) for item in value]
        if isinstance(value, np.generic):
            return _scalar(value)
        writer = _WRITERS.get(kind)
        if writer is None:
            raise Unrecordable(f"a value of class {kind.__qualname__}")
        return writer(value, lambda item: self.write(item, depth + 1))


_Write = Callable[[Any], Any]


def _array(value: Any) -> Any:
    if value.dtype.kind not in NUMBERS:
        raise Unrecordable(f"an array of dtype {value.dtype}")
    return {"=array": [value.dtype.str, list(value.shape), value.tobytes().hex()]}


def _scalar(value: Any) -> Any:
    if value.dtype.kind not in NUMBERS:
        raise Unrecordable(f"a value of dtype {value.dtype}")
    return {"=scalar": [value.dtype.str, value.tobytes().hex()]}


_WRITERS: dict[type, Callable[[Any, _Write], Any]] = {
    float: lambda value, write: {"=float": value.hex()},
    tuple: lambda value, write: {"=tuple": [write(item) for item in value]},
    set: lambda value, write: {"=set": sorted(map(write, value), key=repr)},
    frozenset: lambda value, write: {"=frozenset": sorted(map(write, value), key=repr)},
    deque: lambda value, write: {"=deque": [[write(item) for item in value], value.maxlen]},
    dict: lambda value, write: {"=dict": [[write(key), write(item)] for key, item in value.items()]},
    bytes: lambda value, write: {"=bytes": value.hex()},
    bytearray: lambda value, write: {"=bytearray": value.hex()},
    np.ndarray: lambda value, write: _array(value),
    random.Random: lambda value, write: {"=random": write(value.getstate())},
    np.random.Generator: lambda value, write: {"=generator": write(value.bit_generator.state)},
    np.random.RandomState: lambda value, write: {"=legacy": write(value.get_state(legacy=False))},
}


def from_data(data: Any, own: Any = None) -> Any:
    """Return the value that `to_data` wrote: `own`, brought to it in place, if it is a generator or an array
    of the same form; a new one otherwise. Raises CorruptObject."""
    try:
        return _read(data, own)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptObject(f"A recorded value cannot be read: {error}.") from error


def _read(data: Any, own: Any = None) -> Any:
    if isinstance(data, list):
        return [_read(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    return _READERS[tag](content, own)


def _read_array(content: Any, own: Any) -> Any:
    dtype, shape, raw = content
    array = np.frombuffer(bytes.fromhex(raw), number(dtype)).reshape(shape).copy()
    if (
        type(own) is np.ndarray
        and own.dtype == array.dtype
        and own.shape == array.shape
        and own.flags.writeable
    ):
        own[...] = array
        return own
    return array


def _read_random(content: Any, own: Any) -> Any:
    made = own if type(own) is random.Random else random.Random()
    made.setstate(_read(content))
    return made


def _read_generator(content: Any, own: Any) -> Any:
    state = _read(content)
    kind = _BIT_GENERATORS[state["bit_generator"]]
    fits = type(own) is np.random.Generator and type(own.bit_generator) is kind
    made = own if fits else np.random.Generator(kind())
    made.bit_generator.state = state
    return made


def _read_legacy(content: Any, own: Any) -> Any:
    made = own if type(own) is np.random.RandomState else np.random.RandomState()
    made.set_state(_read(content))
    return made


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "=float": lambda content, own: float.fromhex(content),
    "=tuple": lambda content, own: tuple(map(_read, content)),
    "=set": lambda content, own: set(map(_read, content)),
    "=frozenset": lambda content, own: frozenset(map(_read, content)),
    "=deque": lambda content, own: deque(map(_read, content[0]), content[1]),
    "=dict": lambda content, own: {_read(key): _read(item) for key, item in content},
    "=bytes": lambda content, own: bytes.fromhex(content),
    "=bytearray": lambda content, own: bytearray.fromhex(content),
    "=array": _read_array,
    "=scalar": lambda content, own: np.frombuffer(bytes.fromhex(content[1]), number(content[0]))[0],
    "=random": _read_random,
    "=generator": _read_generator,
    "=legacy": _read_legacy,
}

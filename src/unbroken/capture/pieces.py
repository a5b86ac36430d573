"""What a suspended function holds, taken apart: what can be restored in place, and the rest as text.

The text of two pieces is the same only if their values are. What is suspended in C (a file that is being
read, a reader of CSV, most of `itertools`) says nowhere how far it is, and is `Unreadable`. Iterators over
ranges and sequences, and `enumerate`, `zip`, `map`, `filter` and `reversed` say it in their `__reduce__`,
which runs no code of the program. An iterator that a class in Python makes is an object like any other.

Not promised: what an object hides from its attributes, beyond what a walk notes of it.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import msgspec

from unbroken.state import walk
from unbroken.state.iterators import is_made_anew
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import PLAIN, class_name
from unbroken.state.policy import Policy


class Unreadable(Exception):
    """Nothing tells where a value stands. The message is the second half of a sentence about its holder."""


@dataclass(frozen=True)
class Piece:
    """One value. `parts` are restored in place; `text` is everything that cannot be written into it."""

    text: str
    parts: tuple[Any, ...] = ()


_TOLD_BY_REDUCE = frozenset(
    {
        type(iter([])), type(iter(())), type(iter("")), type(iter("\xe9")), type(iter(b"")),
        type(iter(bytearray())), type(iter(range(0))), type(iter(range(2**70))), type(reversed([])),
        type(iter(int, 0)), enumerate, filter, map, reversed, zip,
    }
)  # fmt: skip
_IN_PLACE = frozenset({Kind.LIST, Kind.DEQUE, Kind.DICT, Kind.ARRAY, Kind.OBJECT, Kind.FUNCTION})
_READS = ("__next__", "read", "recv")
"""Methods that carry a position along."""


def piece_of(value: Any, policy: Policy) -> Piece:
    """Take a value apart, under the rules of a walk.

    Raises:
        Unreadable: it or something it is made of does not tell where it stands.
    """
    kind = type(value)
    if kind in PLAIN:
        return Piece(repr(value))
    if kind in _TOLD_BY_REDUCE:
        _, arguments, *position = value.__reduce__()
        return _of_several(f"{kind.__qualname__} at {position}", arguments, policy)
    if isinstance(value, GeneratorType):
        return Piece(value.__qualname__, (value,))  # which is taken apart where it is walked itself
    if isinstance(value, (MethodType, BuiltinFunctionType)) and _is_bound(value):
        return _of_several(f"method {value.__name__}", [value.__self__], policy)
    return _of_kind(value, policy)


def _of_kind(value: Any, policy: Policy) -> Piece:
    facts = lookup(policy).facts(type(value))
    name = facts.name
    if facts.kind is Kind.EXTERNAL:
        _refuse_external(value, name, stateless=facts.stateless)
        return Piece(name)
    if facts.kind is Kind.CLASS:
        return Piece(f"{name} {class_name(value) if isinstance(value, type) else value.__name__}")
    if facts.kind is Kind.TUPLE:
        return _of_several(name, value, policy)
    if facts.kind is Kind.PARTIAL:
        names = ", ".join(value.keywords)
        return _of_several(f"{name} {names}", [value.func, *value.args, *value.keywords.values()], policy)
    if is_made_anew(facts.codec) and type(value) is not itertools.count:
        raise Unreadable(f"nothing tells how far the {name.removeprefix('builtins:')} in it is")
    if facts.kind is Kind.OBJECT and hasattr(type(value), "__next__") and not _in_python(type(value)):
        raise Unreadable(f"nothing tells how far the {type(value).__qualname__} in it is")
    # A restored iterator is another one, which a suspended function does not get to see.
    mutable = facts.codec is not None and facts.codec.mutable and not is_made_anew(facts.codec)
    if facts.kind in _IN_PLACE or mutable or isinstance(value, (set, bytearray)):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        return Piece(name if dtype is None else f"{name} {shape}{dtype}", (value,))
    return Piece(f"{name} {_digest(value, policy)}")


def _of_several(text: str, values: Iterable[Any], policy: Policy) -> Piece:
    pieces = [piece_of(value, policy) for value in values]
    inside = ", ".join(piece.text for piece in pieces)
    return Piece(f"{text} ({inside})", tuple(part for piece in pieces for part in piece.parts))


def _is_bound(value: Any) -> bool:
    return value.__self__ is not None and not isinstance(value.__self__, (ModuleType, type))


def _refuse_external(value: Any, name: str, *, stateless: bool) -> None:
    """Raise Unreadable for what a walk leaves to the program although it stands somewhere."""
    if isinstance(value, io.IOBase):
        if value.closed or not value.readable():
            return
        raise Unreadable(f"it reads on from an open {type(value).__name__}{_named(value)}")
    if not stateless or any(hasattr(type(value), method) for method in _READS):
        raise Unreadable(f"nothing tells how far the {name.removeprefix('builtins:')} in it is")


def _named(file: Any) -> str:
    name = getattr(file, "name", None)
    return f" ({name})" if isinstance(name, str) else ""


def _in_python(cls: type) -> bool:
    """Whether all that makes objects of a class is written in Python: no base can hide anything."""
    made = [base.__dict__["__new__"] for base in cls.__mro__[:-1] if "__new__" in base.__dict__]
    return all(isinstance(new, staticmethod) and isinstance(new.__func__, FunctionType) for new in made)


def _digest(value: object, policy: Policy) -> str:
    """Return what tells a value from every other one that has no identity."""
    found = hashlib.blake2b(digest_size=16)
    for component in walk.capture({"value": value}, policy).components.values():
        found.update(msgspec.msgpack.encode(component.roots))
        for i in range(len(component.blobs)):
            found.update(component.content(i).tobytes())
    return found.hexdigest()

"""Codecs for iterators of Python itself: what they run over, as an ordinary reference, and how far they are.

Where one stands is read by `__reduce__`, which runs nothing and takes nothing out. A restored iterator is made
anew and put in every place of the old one: hardly any can be set back. It is positioned when everything that it
may run over is complete.

What is written says what is still to come, so that two iterators that go on alike are written alike: of a range
the rest, of one that has ended nothing.

Not promised, and said to be not captured: iterators over dicts, sets and deques, which refuse to go on once
their container was filled again; the rest of `itertools`, and all of it but `count` and `repeat` from Python
3.14 on, where nothing tells how far they are.
"""

from __future__ import annotations

import array
import ast
import gc
import itertools
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.errors import CorruptObject
from unbroken.state.nodes import Dict, List, Value, class_name
from unbroken.state.policy import Codec, Phase
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class _MadeAnew(ABC):
    """What all have in common. A subclass takes an iterator apart and makes one of its parts."""

    name: str
    mutable = True
    exact = True
    made_anew = True
    """The program's own object is never brought to the saved state: another one takes its place."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def parts(self, value: Any) -> list[Any] | None:
        """Return what an iterator of this kind is made of; None if it has ended."""

    @abstractmethod
    def make(self, parts: list[Any], graft: Graft) -> Any:
        """Return an iterator made of `parts`. Raises TypeError or ValueError if they do not fit."""

    def ended(self, cls: str) -> Any:
        """Return an iterator of this class that has ended; None if one of this kind never tells that it has."""
        return None

    def encode(self, value: Any, walk: Walk) -> Value:
        parts = self.parts(value)
        if parts is None:
            return None
        return List(v=[walk.child(str(i), part) for i, part in enumerate(parts)])

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if payload is None and (over := self.ended(cls)) is not None:
            return _emptied(over)
        if not isinstance(payload, List):
            raise CorruptObject(f"{graft.place} should hold the parts of an iterator.")
        had = self.parts(twin) if class_name(type(twin)) == cls else None
        twins = [*(had or []), *[MISSING] * len(payload.v)]
        parts = [graft.value(str(i), node, twins[i]) for i, node in enumerate(payload.v)]
        met_inside = graft.planned()  # a list that it runs over may hold it
        if met_inside is not MISSING:
            return met_inside
        try:
            return self.make(parts, graft)
        except (TypeError, ValueError, IndexError, OverflowError):
            # It runs over what lives outside of checkpoints (a generator, a file), which is said there.
            graft.note("lost", f"{cls} cannot be made anew; the program's stays.")
            return None if twin is MISSING else twin


class OverSequence(_MadeAnew):
    """An iterator over a sequence and an index: of lists, tuples, text, bytes, arrays, forwards or `reversed`."""

    def __init__(self, name: str, over: Callable[[Any], Any], ended: dict[str, Any]) -> None:
        super().__init__(name)
        self._over = over
        self._ended = ended

    def parts(self, value: Any) -> list[Any] | None:
        _, arguments, *position = value.__reduce__()
        # Below the first one nothing is left, and from Python 3.13 on nothing is told.
        return [*arguments, *position] if position and position[0] >= 0 else None

    def make(self, parts: list[Any], graft: Graft) -> Any:
        sequence, position = parts
        made = self._over(sequence)
        graft.write(made.__setstate__, operator.index(position), phase=Phase.GENERATORS)
        return made

    def ended(self, cls: str) -> Any:
        return self._over(self._ended.get(cls, ()))

    def encode(self, value: Any, walk: Walk) -> Value:
        parts = self.parts(value)
        if parts is not None and isinstance(parts[0], _SHRINKING) and parts[1] > len(parts[0]):
            # Set back it would stand at the end, and go on once the sequence is longer again.
            walk.note("approximate", f"{class_name(type(value))} beyond the end of what has become shorter")
        return super().encode(value, walk)


class OverRange(_MadeAnew):
    """An iterator over a range: the rest of the range."""

    def parts(self, value: Any) -> list[Any]:
        _, (whole,), *position = value.__reduce__()
        # From Python 3.12 on it tells the rest itself.
        rest = whole[position[0] or 0 :] if position else whole
        return [rest.start, rest.stop, rest.step]

    def make(self, parts: list[Any], graft: Graft) -> Any:
        return iter(range(*parts))


class OverIterators(_MadeAnew):
    """`enumerate`, `zip`, `map`, `filter` and `iter(function, sentinel)`: what they were called with."""

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        super().__init__(name)
        self._make = make

    def parts(self, value: Any) -> list[Any] | None:
        _, arguments, *more = value.__reduce__()
        if self._make is iter and len(arguments) < 2:
            return None
        return [*more, *arguments] if self._make is _zip else list(arguments)

    def make(self, parts: list[Any], graft: Graft) -> Any:
        return self._make(*parts)

    def ended(self, cls: str) -> Any:
        return iter(int, 0)


class Chain(_MadeAnew):
    """`itertools.chain`: the iterator over what is chained, and the one that is under way."""

    def parts(self, value: Any) -> list[Any] | None:
        with _silent():
            _, _, *state = value.__reduce__()
        return list(state[0]) if state else None

    def make(self, parts: list[Any], graft: Graft) -> Any:
        made: Any = itertools.chain()
        with _silent():
            made.__setstate__(tuple(parts))
        return made

    def ended(self, cls: str) -> Any:
        return itertools.chain()


class Cycle(_MadeAnew):
    """`itertools.cycle`: what it has seen, and the first round under way or an index into what it has seen."""

    def parts(self, value: Any) -> list[Any]:
        with _silent():
            _, (under_way,), (seen, again) = value.__reduce__()
        if not again:
            return [seen, under_way]
        # After a restore it is still the iterator that was given to it; before, one that is made to be told.
        _, _, *index = under_way.__reduce__()
        return [seen, index[0] % len(seen) if index and seen else 0]

    def make(self, parts: list[Any], graft: Graft) -> Any:
        seen, position = parts
        if type(seen) is not list:
            raise TypeError("it keeps a list")
        again = type(position) is int
        under_way: Any = list.__iter__(seen) if again else _iterator(position)
        if again:
            graft.write(under_way.__setstate__, position, phase=Phase.GENERATORS)
        made: Any = itertools.cycle(under_way)
        with _silent():
            made.__setstate__((seen, int(again)))
        return made


class Slice(_MadeAnew):
    """`itertools.islice`: what it runs over, how far that is, and which come next."""

    def parts(self, value: Any) -> list[Any] | None:
        with _silent():
            _, arguments, count = value.__reduce__()
        return [*arguments, count] if len(arguments) == len(("over", "next", "stop", "step")) else None

    def make(self, parts: list[Any], graft: Graft) -> Any:
        over, *numbers, count = parts
        made: Any = itertools.islice(_iterator(over), *numbers)
        with _silent():
            made.__setstate__(count)
        return made

    def ended(self, cls: str) -> Any:
        return itertools.islice((), 0)


class Repeat(_MadeAnew):
    """`itertools.repeat`: what it repeats, and how many times more; None: for ever."""

    def parts(self, value: Any) -> list[Any]:
        *_, element = gc.get_referents(value)  # from Python 3.12 on its class stands before it
        try:
            return [element, value.__length_hint__()]
        except TypeError:
            return [element, None]

    def make(self, parts: list[Any], graft: Graft) -> Any:
        element, times = parts
        return itertools.repeat(element) if times is None else itertools.repeat(element, times)


class Count(_MadeAnew):
    """`itertools.count`: people number episodes with it."""

    def parts(self, value: Any) -> list[Any]:
        # repr is documented and stable ("count(5)", "count(0, 2)"); pickling of iterators is going away.
        return list(ast.literal_eval(f"({repr(value)[len('count(') : -1]},)"))

    def encode(self, value: Any, walk: Walk) -> Value:
        try:
            return super().encode(value, walk)
        except (ValueError, SyntaxError):
            walk.note("not captured", "itertools.count that does not count in plain numbers")
            return Dict(v={})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        return twin if isinstance(payload, Dict) else super().plan(payload, cls, twin, graft)

    def make(self, parts: list[Any], graft: Graft) -> Any:
        return itertools.count(*parts)


@contextmanager
def _silent() -> Generator[None]:
    """From Python 3.12 on `itertools` announces that it will not tell any more where it stands."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _emptied(iterator: Any) -> Any:
    for _ in iterator:
        pass
    return iterator


def _iterator(value: Any) -> Any:
    if not hasattr(type(value), "__next__"):
        raise TypeError(f"{type(value).__name__} is no iterator")
    return value


_SEQUENCES: tuple[Any, ...] = (list, tuple, str, bytes, bytearray, array.array, np.ndarray)


_SHRINKING = (list, bytearray, array.array)


def _forwards(sequence: Any) -> Any:
    """Return an iterator, without running the `__iter__` of a class of the program."""
    for base in _SEQUENCES:
        if isinstance(sequence, base):
            return base.__iter__(sequence)
    if hasattr(type(sequence), "__iter__"):
        raise TypeError(f"{type(sequence).__name__} makes its iterators itself")
    return iter(sequence)


def _backwards(sequence: Any) -> Any:
    if isinstance(sequence, list):
        return list.__reversed__(sequence)
    if hasattr(type(sequence), "__reversed__"):
        raise TypeError(f"{type(sequence).__name__} makes its iterators itself")
    return reversed(sequence)


def _enumerate(iterator: Any, index: int) -> Any:
    return enumerate(_iterator(iterator), index)


def _zip(*parts: Any) -> Any:
    strict = bool(parts) and parts[0] is True
    return zip(*map(_iterator, parts[1:] if strict else parts), strict=strict)


def _map(function: Any, *iterators: Any) -> Any:
    return map(function, *map(_iterator, iterators))


def _filter(function: Any, iterator: Any) -> Any:
    return filter(function, _iterator(iterator))


class _Indexed:
    """A sequence of the old kind, by its index alone, with nothing in it."""

    def __getitem__(self, index: int) -> object:
        raise IndexError(index)


_EMPTY: tuple[Any, ...] = (
    [], (), "", "\xe9", b"", bytearray(), array.array("b"), _Indexed(),
)  # fmt: skip
_FORWARDS = OverSequence("iterator", _forwards, {class_name(type(iter(empty))): empty for empty in _EMPTY})
_BACKWARDS = OverSequence("reversed", _backwards, {class_name(type(reversed([]))): []})
_RANGE = OverRange("iterator.range")

CODECS: dict[str, Codec] = {
    **{class_name(type(iter(empty))): _FORWARDS for empty in _EMPTY},
    class_name(type(reversed([]))): _BACKWARDS,
    "builtins:reversed": _BACKWARDS,
    class_name(type(iter(range(0)))): _RANGE,
    class_name(type(iter(range(2**70)))): _RANGE,
    class_name(type(iter(int, 0))): OverIterators("iterator.calls", iter),
    "builtins:enumerate": OverIterators("enumerate", _enumerate),
    "builtins:zip": OverIterators("zip", _zip),
    "builtins:map": OverIterators("map", _map),
    "builtins:filter": OverIterators("filter", _filter),
    "itertools:count": Count("itertools.count"),
    "itertools:repeat": Repeat("itertools.repeat"),
}
"""By class; derived classes are not meant."""

if hasattr(itertools.chain, "__setstate__"):
    CODECS.update(
        {
            "itertools:chain": Chain("itertools.chain"),
            "itertools:cycle": Cycle("itertools.cycle"),
            "itertools:islice": Slice("itertools.islice"),
        }
    )


def is_made_anew(codec: Codec | None) -> bool:
    """Whether objects of a codec are never brought to a saved state: another one takes their place."""
    return getattr(codec, "made_anew", False)

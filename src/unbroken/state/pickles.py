"""Pickles: which may be loaded, and how far.

What a caller says of a checkpoint is a `Trust`: False loads no pickle, True every one (it is signed, or the
caller's own), and a set of names, `module.Class`, loads those that need no other class.

With a set a pickle is read three times, and its words count only from the third on: its opcodes alone, for
what no pickle of this package needs (huge announcements, registries, buffers from elsewhere); then with an
empty stand-in for every class, so that all names are known and nothing of any module has run; then for good,
where a name that is not in the set cannot be resolved. Only classes are ever called: not what a class has
below itself, no functions, no instances, and no class is changed.

Not promised: that a class which is named does no harm with what it is given, and a bound on the time that a
hostile pickle of named classes takes.
"""

from __future__ import annotations

import importlib
import io
import pickle
import pickletools
from typing import Any, TypeAlias, Union, cast

import numpy as np

from unbroken.errors import Untrusted

Trust: TypeAlias = Union[bool, frozenset[str]]
"""Whether pickles are loaded; or the names of the classes, `module.Class`, that may stand in them."""

ALWAYS = frozenset(
    {"builtins.complex", "builtins.object", "builtins.slice", "collections.OrderedDict", "collections.deque"}
)
"""Plain values, which need not be named. Lists, dicts, sets and bytes are no names in a pickle at all."""

ARRAY = "numpy.ndarray"
"""Who names it allows arrays and scalars of numbers, with all that numpy writes for them."""

HINT = "Name the classes in trust if you know them, or set UNBROKEN_KEY to the key of its writer."

_NUMBERS = "biufc?"
_BEHIND = frozenset({"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"})
"""Opcodes that fetch something from outside of the pickle."""
_NUMBERED = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
"""Opcodes for which a reader makes room up to a number that the pickle says."""


def load(data: bytes, trust: Trust) -> Any:
    """Return the object of a pickle that is trusted so far.

    Raises:
        Untrusted: not all that it needs is named, or it is no plain pickle; nothing of it was loaded.
        Exception: whatever a class raises when it is given its state back.
    """
    if trust is True:
        return pickle.loads(data)  # noqa: S301 - signed by us, or by the caller's word
    allowed = trust or frozenset[str]()
    needed = names_in(data)
    if missing := sorted(needed - ALWAYS - allowed - (_OF_ARRAYS.keys() if ARRAY in allowed else set())):
        raise _refused(f"it needs {', '.join(missing)}, which trust does not name")
    return _Named(data, allowed).load()


def names_in(data: bytes) -> frozenset[str]:
    """Return the name of every class that a pickle needs, without anything of it being run.

    Raises:
        Untrusted: it is no plain pickle.
    """
    _look_over(data)
    reader = _Dry(data)
    try:
        reader.load()
    except Untrusted:
        raise
    except Exception as error:
        raise _refused(f"it is no plain pickle: {type(error).__name__}: {str(error)[:200]}") from error
    return frozenset(reader.names)


def _look_over(data: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _BEHIND:
                raise _refused(f"it fetches something from outside ({opcode.name})")
            if opcode.name in _NUMBERED and not 0 <= cast("int", argument) <= len(data):
                raise _refused("it numbers more objects than it has")
    except Untrusted:
        raise
    except Exception as error:
        raise _refused(f"it is no plain pickle: {str(error)[:200]}") from error


def _refused(why: str) -> Untrusted:
    return Untrusted(f"The pickle is not loaded: {why}.", hint=HINT)


class _Blank(type):
    """The class of stand-ins. It is what a class can be asked for by a pickle, and refuses all of it."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise _refused(f"it would change the class {cls.__name__}")


class _StandIn(metaclass=_Blank):
    """In the place of any object: takes everything, and does nothing."""

    def __new__(cls, *_: object, **__: object) -> _StandIn:  # noqa: PYI034
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(*given: object) -> None:
        if len(given) != 2 or isinstance(given[0], type):
            raise _refused("it gives a state to a class")

    def __call__(self, *_: object, **__: object) -> None:
        raise _refused("it calls an object that is no class")

    def append(self, item: object) -> None:
        pass

    def extend(self, items: object) -> None:
        pass

    def add(self, item: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _NoArray(_StandIn):
    """In the place of the class of arrays, which is only spoken of: made are they by what checks their sizes."""

    def __new__(cls, *_: object, **__: object) -> _NoArray:  # noqa: PYI034
        raise _refused("it makes an array of a size that it only announces")


class _Dry(pickle.Unpickler):
    """Reads a pickle with a stand-in for every class, and writes down their names."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        full = f"{module}.{name}"
        self.names.add(full)
        return _Blank(full, (_NoArray if full == ARRAY else _StandIn,), {})


class _Named(pickle.Unpickler):
    """Reads a pickle for good; no other name than those given can be resolved."""

    def __init__(self, data: bytes, allowed: frozenset[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str, /) -> Any:
        full = f"{module}.{name}"
        if ARRAY in self._allowed and full in _OF_ARRAYS:
            return _OF_ARRAYS[full]
        if full not in self._allowed | ALWAYS:
            raise _refused(f"it needs {full}, which trust does not name")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        # A name may lead to another class, or to a function, than the one that a person has read.
        if not isinstance(found, type) or f"{found.__module__}.{found.__qualname__}" != full:
            raise _refused(f"{full} is not the name of a class")
        return found


def _dtype(kind: object, *_: object) -> np.dtype[Any]:
    if not isinstance(kind, str) or kind.lstrip("<>=|")[:1] not in _NUMBERS:
        raise _refused("it has an array that holds no numbers")
    # Of its own: its state is set afterwards, and the type that all arrays share must not be changed.
    return np.dtype(kind, False, True)


def _from_buffer(data: object, dtype: object, shape: object, order: object) -> object:
    if not isinstance(data, (bytes, bytearray)) or not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise _refused("it has an array that holds no numbers")
    fortran = order == "F"
    return np.frombuffer(data, dtype).reshape(cast("tuple[int, ...]", shape), order="F" if fortran else "C")


def _empty(kind: object, shape: object, *_: object) -> object:
    if kind is not np.ndarray or shape != (0,):
        raise _refused("it has an array of another class")
    return np.empty((0,), np.uint8)


def _scalar(dtype: object, data: object = b"", *_: object) -> object:
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(data, bytes):
        raise _refused("it has a scalar that is no number")
    if len(data) != dtype.itemsize:
        raise _refused("it has a scalar of another size than its type")
    return cast("object", np.frombuffer(data, dtype)[0])


_OF_ARRAYS: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _dtype,
    **{f"numpy.{core}.numeric._frombuffer": _from_buffer for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": _empty for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
}
"""What numpy writes for an array of numbers, each made by us: numpy's own allocate whatever they are told."""

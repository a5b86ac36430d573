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
import math
import pickle
import pickletools
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, Union, cast

import numpy as np

from unbroken.errors import CorruptObject, UnbrokenError, Untrusted

Trust: TypeAlias = Union[bool, frozenset[str]]
"""Whether pickles are loaded; or the names of the classes, `module.Class`, that may stand in them."""

ALWAYS = frozenset(
    {"builtins.complex", "builtins.object", "builtins.slice", "collections.OrderedDict", "collections.deque"}
)
"""Plain values, which need not be named. Lists, dicts, sets and bytes are no names in a pickle at all."""

ARRAY = "numpy.ndarray"
"""Who names it allows arrays and scalars of numbers, with all that numpy writes for them."""

HINT = "Name the classes in trust if you know them, or set UNBROKEN_KEY to the key of its writer."

_PLAIN_DTYPE = re.compile(r"[biufc][1248]|[fc]16|c32|\?|b1")
_STATE_PARTS = frozenset({int, str, type(None)})
_DIMENSIONS = 32
_FRAME = 9
"""Bytes of the opcode that begins a frame."""
_BEHIND = frozenset({"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"})
"""Opcodes that fetch something from outside of the pickle."""
_NUMBERED = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
"""Opcodes for which a reader makes room up to a number that the pickle says."""


def load(data: bytes, trust: Trust) -> Any:
    """Return the object of a pickle that is trusted so far.

    Raises:
        Untrusted: not all that it needs is named, or it is no plain pickle; nothing of it was loaded.
        CorruptObject: a class that is named refuses what it is given.
    """
    if trust is True:
        return pickle.loads(data)  # noqa: S301 - signed by us, or by the caller's word
    allowed = trust or frozenset[str]()
    needed = names_in(data)
    if missing := sorted(needed - ALWAYS - allowed - (_OF_ARRAYS.keys() if ARRAY in allowed else set())):
        raise _refused(f"it needs {', '.join(missing)}, which trust does not name")
    try:
        return _Named(data, allowed).load()
    except UnbrokenError:
        raise
    except Exception as error:
        raise CorruptObject(f"The pickle cannot be loaded: {type(error).__name__}: {error}") from error


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
    frame = 0
    start: int = 0
    try:
        for opcode, argument, at in pickletools.genops(data):
            at = cast("int", at)
            # CPython 3.11 reads what leaves its frame into memory that it has given back.
            if start < frame < at:
                raise _refused("a part of it leaves its frame")
            start = at
            if opcode.name == "FRAME":
                frame = at + _FRAME + cast("int", argument)
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


class _Finished(_StandIn):
    """In the place of what is made at once, and takes nothing afterwards."""

    def __setstate__(*_: object) -> None:
        raise _refused("it gives a state to an array")

    def append(self, item: object) -> None:
        raise _refused("it adds to an array")

    def extend(self, items: object) -> None:
        raise _refused("it adds to an array")

    def add(self, item: object) -> None:
        raise _refused("it adds to an array")

    def __setitem__(self, key: object, value: object) -> None:
        raise _refused("it changes an array")


class _ArrayClass(_StandIn):
    """In the place of the class of arrays, which is only spoken of."""

    def __new__(cls, *_: object, **__: object) -> _ArrayClass:  # noqa: PYI034
        raise _refused("it makes an array of a size that it only announces")


class _DtypeStandIn(_StandIn):
    """In the place of a type of numbers. Its state says the order of bytes, and nothing else."""

    def __new__(cls, kind: object = None, align: object = None, copy: object = None) -> _DtypeStandIn:  # noqa: PYI034
        if type(kind) is not str or not _PLAIN_DTYPE.fullmatch(kind) or (align, copy) != (False, True):
            raise _refused("it has an array that holds no numbers")
        made = object.__new__(cls)
        made.size = np.dtype(kind).itemsize
        made.open = True
        return made

    def __setstate__(*given: object) -> None:
        made, state = given if len(given) == 2 else (None, None)
        if not isinstance(made, _DtypeStandIn) or not made.open or not _is_plain_state(state):
            raise _refused("it has a type of numbers with a state of its own")
        made.open = False

    size: int
    open: bool


class _ArrayStandIn(_StandIn):
    """In the place of an array whose contents come as its state."""

    def __new__(cls, kind: object = None, shape: object = None, code: object = None) -> _ArrayStandIn:  # noqa: PYI034
        if not (isinstance(kind, type) and issubclass(kind, _ArrayClass)) or shape != (0,) or code != b"b":
            raise _refused("it has an array of another class")
        made = object.__new__(cls)
        made.open = True
        return made

    def __setstate__(*given: object) -> None:
        made, state = given if len(given) == 2 else (None, None)
        if (
            not isinstance(made, _ArrayStandIn)
            or not made.open
            or type(state) is not tuple
            or len(state) != 5
        ):
            raise _refused("it gives a state to an array")
        version, shape, dtype, fortran, data = cast("tuple[object, ...]", state)
        if version != 1 or type(version) is not int or type(fortran) is not bool or type(data) is not bytes:
            raise _refused("it has an array that holds no numbers")
        _check_contents(data, dtype, shape)
        made.open = False

    open: bool


class _BufferStandIn(_Finished):
    """In the place of an array that is made of its bytes."""

    def __new__(
        cls, data: object = None, dtype: object = None, shape: object = None, order: object = None
    ) -> Any:
        if type(data) not in (bytes, bytearray) or order not in ("C", "F"):
            raise _refused("it has an array that holds no numbers")
        _check_contents(cast("bytes", data), dtype, shape)
        return object.__new__(cls)


class _ScalarStandIn(_Finished):
    """In the place of one number."""

    def __new__(cls, dtype: object = None, data: object = None) -> Any:
        if type(data) is not bytes:
            raise _refused("it has a scalar that is no number")
        _check_contents(data, dtype, ())
        return object.__new__(cls)


def _is_plain_state(state: object) -> bool:
    """Whether this is what numpy writes for a type of numbers: (3, order of bytes, None, None, None, -1, -1, 0)."""
    if type(state) is not tuple or len(state) != 8 or any(type(part) not in _STATE_PARTS for part in state):
        return False
    version, order, *rest = cast("tuple[object, ...]", state)
    return version == 3 and order in ("<", ">", "|", "=") and rest == [None, None, None, -1, -1, 0]


def _check_contents(data: bytes | bytearray, dtype: object, shape: object) -> None:
    if not isinstance(dtype, _DtypeStandIn) or type(shape) is not tuple:
        raise _refused("it has an array that holds no numbers")
    lengths = cast("tuple[object, ...]", shape)
    if any(type(n) is not int or n < 0 for n in lengths) or len(lengths) > _DIMENSIONS:
        raise _refused("it has an array of no shape")
    if math.prod(cast("tuple[int, ...]", lengths)) * dtype.size != len(data):
        raise _refused("it has an array of another size than its bytes")


class _Dry(pickle.Unpickler):
    """Reads a pickle with a stand-in for every class, and writes down their names."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        full = f"{module}.{name}"
        self.names.add(full)
        return _Blank(full, (_STAND_INS.get(full, _StandIn),), {})


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


def _dtype(kind: str, *_: object) -> np.dtype[Any]:
    # Of its own: its state is set afterwards, and the type that all arrays share must not be changed.
    return np.dtype(kind, False, True)


def _from_buffer(
    data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]
) -> object:
    return np.frombuffer(data, dtype).reshape(shape, order=order) if data else np.empty(shape, dtype, order)


def _empty(*_: object) -> object:
    return np.empty((0,), np.uint8)


def _scalar(dtype: np.dtype[Any], data: bytes) -> object:
    return cast("object", np.frombuffer(data, dtype)[0])


_ARRAYS: Mapping[str, tuple[type[_StandIn], Any]] = {
    "numpy.ndarray": (_ArrayClass, np.ndarray),
    "numpy.dtype": (_DtypeStandIn, _dtype),
    **{f"numpy.{core}.numeric._frombuffer": (_BufferStandIn, _from_buffer) for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": (_ArrayStandIn, _empty) for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": (_ScalarStandIn, _scalar) for core in ("core", "_core")},
}
"""What numpy writes for an array of numbers: what looks at it when nothing runs, and what makes it. numpy's own take
states that crash the interpreter, so none reaches it that is not just what numpy writes."""

_STAND_INS = {name: stand_in for name, (stand_in, _) in _ARRAYS.items()}
_OF_ARRAYS = {name: make for name, (_, make) in _ARRAYS.items()}

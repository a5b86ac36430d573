"""Codecs for value types of the standard library and numpy. All of them are plain text or numbers."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
import zoneinfo
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.errors import NotCapturable
from unbroken.state import dtypes, holders, iterators, shared_values
from unbroken.state.contents import plain_of
from unbroken.state.nodes import Bytes, Dict, List, Value, class_name
from unbroken.state.policy import Codec
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class TextCodec:
    """A value that a string carries whole."""

    mutable = False

    def __init__(
        self, name: str, write: Callable[[Any], str], read: Callable[[str], Any], *, exact: bool = True
    ) -> None:
        self.name = name
        self.exact = exact
        self._write = write
        self._read = read

    def encode(self, value: Any, walk: Walk) -> Value:
        return self._write(value)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, str):
            return graft.refuse(f"{self.name} needs text.", twin)
        try:
            return self._read(payload)
        except (ValueError, ArithmeticError, KeyError, OSError) as error:
            return graft.refuse(f"{payload[:60]!r} is no {self.name}: {error}", twin)


class ItemsCodec:
    """A value that a short list of plain values or nodes carries."""

    mutable = False
    exact = True

    def __init__(self, name: str, write: Callable[[Any], list[Any]], read: Callable[..., Any]) -> None:
        self.name = name
        self._write = write
        self._read = read

    def encode(self, value: Any, walk: Walk) -> Value:
        return List(v=[walk.child(str(i), item) for i, item in enumerate(self._write(value))])

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, List):
            return graft.refuse(f"{self.name} needs a list.", twin)
        items = [graft.value(str(i), item) for i, item in enumerate(payload.v)]
        try:
            return self._read(*items)
        except (TypeError, ValueError, OverflowError) as error:
            return graft.refuse(f"{self.name} cannot be built: {error}", twin)


class PathCodec:
    """A path, pure or not, of the kind of this system."""

    name = "path"
    mutable = False

    def encode(self, value: Any, walk: Walk) -> Value:
        return str(value)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        made = {
            class_name(kind): kind
            for kind in (type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath)
        }.get(cls)
        if not isinstance(payload, str) or made is None:
            return graft.refuse(f"{cls} is no path of this system.", twin)
        return made(payload)


class ScalarCodec:
    """A numpy scalar: dtype and raw bytes, so that every bit pattern survives."""

    name = "numpy.scalar"
    mutable = False

    def encode(self, value: Any, walk: Walk) -> Value:
        return Dict(v={"d": dtypes.name(value.dtype), "v": Bytes(v=value.tobytes())})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if isinstance(payload, Dict) and payload.v is not None:
            d, v = payload.v.get("d"), payload.v.get("v")
            if isinstance(d, str) and isinstance(v, Bytes):
                dtype = dtypes.parse(d)
                if dtype.itemsize == len(v.v):
                    return np.frombuffer(v.v, dtype)[0] if dtype.itemsize else np.zeros((), dtype)[()]
        return graft.refuse("a numpy scalar needs a dtype and as many bytes.", twin)


class EnumCodec:
    """A member of an enumeration that the program has, by name; flags by value."""

    name = "enum"
    mutable = False

    def encode(self, value: Any, walk: Walk) -> Value:
        return walk.here(value.value) if isinstance(value, enum.Flag) else str(value.name)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        found = graft.loaded_class(cls, twin)
        if found is None or not issubclass(found, enum.Enum):
            return graft.refuse(f"the enumeration {cls} is not loaded.", twin)
        try:
            if issubclass(found, enum.Flag):
                return found(graft.here(payload))
            return found[str(payload)]
        except (KeyError, ValueError, TypeError):
            return graft.refuse(f"{cls} has no member {payload!r}.", twin)


class SubclassCodec:
    """An instance of a class derived from int, float, str or bytes, with the attributes it has."""

    name = "subclass"
    mutable = False

    def encode(self, value: Any, walk: Walk) -> Value:
        plain, attributes = walk.child("value", plain_of(value)), walk.attributes(value)
        return Dict(v={"value": plain, "attributes": Dict(v=attributes)} if attributes else {"value": plain})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None or "value" not in payload.v:
            return graft.refuse(f"{cls} needs a value.", twin)
        plain: Any = graft.value("value", payload.v["value"])
        attributes = payload.v.get("attributes")
        if attributes is None and class_name(type(twin)) == cls and _is_plainly(twin, plain):
            return twin
        found = graft.buildable_class(cls, twin)
        base: Any = type(plain)
        if found is None or not isinstance(plain, (int, float, str, bytes)) or not issubclass(found, base):
            return graft.refuse(f"{cls} cannot be made of a {base.__name__}.", twin)
        if issubclass(found, enum.Enum):
            return graft.refuse(f"{cls} is an enumeration; its members are never made.", twin)
        made = base.__new__(found, plain)
        if isinstance(attributes, Dict):
            graft.attributes(attributes.v or {}, made)
        return made


def _is_plainly(value: Any, plain: object) -> bool:
    """Whether an object of a derived class is this value, to the sign of a zero, whatever its class calls equal."""
    if not isinstance(value, (int, float, str, bytes)):
        return False
    own = plain_of(value)
    if type(own) is not type(plain):
        return False
    return repr(own) == repr(plain) if isinstance(own, float) else bool(own == plain)


class NamespaceCodec:
    """`types.SimpleNamespace`: a mutable bag of attributes, filled in place."""

    name = "namespace"
    mutable = True
    exact = True

    def encode(self, value: Any, walk: Walk) -> Value:
        return Dict(v={str(k): walk.child(str(k), v) for k, v in vars(value).items()})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None:
            return graft.refuse("a namespace needs a dict.", twin)
        own = type(twin) is types.SimpleNamespace and graft.claim(twin)
        result: Any = twin if own else types.SimpleNamespace()
        graft.register(result)
        had = dict(vars(result))
        new = {k: graft.value(k, v, had.get(k, MISSING)) for k, v in payload.v.items()}

        def fill() -> None:
            vars(result).clear()
            vars(result).update(new)

        graft.write(fill)
        return result


def _dtype_text(value: Any) -> str:
    return dtypes.name(value)


def _delta(value: datetime.timedelta) -> list[Any]:
    return [value.days, value.seconds, value.microseconds]


def _moment(value: datetime.datetime | datetime.time) -> list[Any]:
    # The zone is a value of its own: as text only its offset at one moment would be left.
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo]


def _datetime(text: str, fold: int, zone: datetime.tzinfo | None) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _time(text: str, fold: int, zone: datetime.tzinfo | None) -> datetime.time:
    return datetime.time.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _timezone(offset: datetime.timedelta, name: str | None) -> datetime.timezone:
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _timezone_parts(value: datetime.timezone) -> list[Any]:
    offset = value.utcoffset(None)
    named = value.tzname(None) != datetime.timezone(offset).tzname(None)
    return [offset, value.tzname(None) if named else None]


def _zone(value: zoneinfo.ZoneInfo) -> str:
    name: Any = value.key
    if not isinstance(name, str):  # None for one that was read from a file
        raise NotCapturable(
            "A time zone that was read from a file has no name.", hint="Make it by its name: ZoneInfo(name)."
        )
    return str(name)


def _constant(text: str) -> Any:
    return {"Ellipsis": ..., "NotImplemented": NotImplemented}[text]


_PATH = PathCodec()
_SUBCLASS = SubclassCodec()
_SCALAR = ScalarCodec()

CODECS: dict[str, Codec] = {
    **holders.CODECS,
    **iterators.CODECS,
    **shared_values.CODECS,
    "datetime:datetime": ItemsCodec("datetime", _moment, _datetime),
    "datetime:date": TextCodec("date", lambda v: v.isoformat(), datetime.date.fromisoformat),
    "datetime:time": ItemsCodec("time", _moment, _time),
    "datetime:timedelta": ItemsCodec("timedelta", _delta, datetime.timedelta),
    "datetime:timezone": ItemsCodec("timezone", _timezone_parts, _timezone),
    "zoneinfo:ZoneInfo": TextCodec("zone", _zone, zoneinfo.ZoneInfo),
    "decimal:Decimal": TextCodec("decimal", str, decimal.Decimal),
    "fractions:Fraction": TextCodec("fraction", str, fractions.Fraction),
    "uuid:UUID": TextCodec("uuid", str, uuid.UUID),
    "builtins:complex": ItemsCodec("complex", lambda v: [v.real, v.imag], complex),
    "builtins:slice": ItemsCodec("slice", lambda v: [v.start, v.stop, v.step], slice),
    "builtins:range": ItemsCodec("range", lambda v: [v.start, v.stop, v.step], range),
    "builtins:ellipsis": TextCodec("constant", lambda v: "Ellipsis", _constant),
    "builtins:NotImplementedType": TextCodec("constant", lambda v: "NotImplemented", _constant),
    "pathlib:PurePath": _PATH,
    # The module that defines paths moved in 3.13; only the name of a base is looked up.
    "pathlib._local:PurePath": _PATH,
    "numpy:dtype": TextCodec("numpy.dtype", _dtype_text, dtypes.parse, exact=False),
    "numpy:generic": _SCALAR,
    "enum:Enum": EnumCodec(),
    "types:SimpleNamespace": NamespaceCodec(),
    "builtins:int": _SUBCLASS,
    "builtins:float": _SUBCLASS,
    "builtins:str": _SUBCLASS,
    "builtins:bytes": _SUBCLASS,
    # Their first base is str or bytes, which would win.
    "numpy:str_": _SCALAR,
    "numpy:bytes_": _SCALAR,
}
"""By class. Plain int, float, str and bytes never get here: the walker writes them as themselves."""

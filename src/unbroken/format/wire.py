"""Records: the small JSON files that say what a run holds.

Every record is one JSON object with its kind under ``record`` and the format version under
``version``. JSON holds neither NaN and infinities nor integers beyond 64 bits: these are written with
the words of state documents (``{"$": "float", "v": "nan"}``), so that a metric may be NaN.

A decoder raises only `CorruptObject` and `UnsupportedFormat`, whatever the bytes. Fields that it does
not know are ignored: what an older reader must not ignore is announced as a mandatory feature in
``format.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TypeVar, cast

import msgspec
import numpy as np

from unbroken.errors import CorruptObject, InternalError, UnsupportedFormat
from unbroken.format import migrations
from unbroken.types import Plain

FORMAT_VERSION = 0
"""The version that this package writes. 0 may change at any time; 1 comes with release 0.1.0."""

_INT64 = range(-(2**63), 2**64)


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Base of all records."""

    version: int = FORMAT_VERSION


R = TypeVar("R", bound=Record)


class _Header(msgspec.Struct):
    version: int = FORMAT_VERSION


def encode(record: Record, *, indent: int = 2) -> bytes:
    """Return the record as JSON with sorted keys: equal records give equal bytes."""
    try:
        plain: Plain = msgspec.to_builtins(record, builtin_types=(), str_keys=True, enc_hook=_plain)
        data = msgspec.json.encode(_freeze(plain), order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InternalError(f"A {type(record).__name__} record cannot be written: {error}.") from error
    return msgspec.json.format(data, indent=indent) if indent else data


def encode_line(record: Record) -> bytes:
    """Return the record as one line, for files that grow by lines."""
    return encode(record, indent=0) + b"\n"


def decode(data: bytes, kind: type[R], *, key: str = "") -> R:
    """Return the record of this kind; `key` is the object's name, for the message."""
    try:
        plain = _thaw(msgspec.json.decode(data))
        if not isinstance(plain, dict) or not {"record", "version"} <= plain.keys():
            raise ValueError("it does not say what record and version it is")
        if migrations.is_older(version := plain["version"]):
            plain = migrations.record(plain, version=cast("int", version))
        record = msgspec.convert(plain, kind)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        check_version(_version(data), key=key)
        where = key or f"A {kind.__name__} record"
        raise CorruptObject(f"{where} is not readable: {error}.", key=key) from error
    check_version(record.version, key=key)
    return record


def check_version(version: int, *, key: str = "") -> None:
    """Raise `UnsupportedFormat` if `version` is newer than this package."""
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{key or 'A record'} has format version {version}; this Unbroken reads up to {FORMAT_VERSION}.",
            hint="Upgrade unbroken.",
        )


def _version(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Header).version
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return FORMAT_VERSION


def _plain(value: object) -> object:
    """Facts come from users and frameworks: take what has an obvious plain form."""
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("object", value.tolist())
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, Iterable):
        return list(cast("Iterable[object]", value))
    raise TypeError(f"a {type(value).__qualname__} has no plain form")


def _freeze(value: Plain) -> Plain:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$": "float", "v": repr(value)}
    if isinstance(value, int) and value not in _INT64:
        return {"$": "int", "v": hex(value)}
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return [_freeze(item) for item in value]
    if isinstance(value, dict):
        plain = {_text(key): _freeze(item) for key, item in value.items()}
        return {"$": "dict", "v": plain} if "$" in plain else plain
    return value


def _text(value: str) -> str:
    """Lone surrogates (a host or file name that is no UTF-8) have no JSON form: show them escaped."""
    return value.encode("utf-8", "backslashreplace").decode()


def _thaw(value: Plain) -> Plain:
    if isinstance(value, list):
        return [_thaw(item) for item in value]
    if isinstance(value, dict):
        word = value.get("$")
        if word is None:
            return {key: _thaw(item) for key, item in value.items()}
        inner = value.get("v")
        if word == "float" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if word == "int" and isinstance(inner, str):
            return int(inner, 16)
        if word == "dict" and isinstance(inner, dict):
            return {key: _thaw(item) for key, item in inner.items()}
        raise ValueError(f"the word {str(word)[:40]!r} is not known in records")
    return value

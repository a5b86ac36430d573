"""Values that JSON says completely: None, truth values, numbers, texts, lists, and dicts with texts as keys.

Only exact types count, and no list or dict may be met twice: what is read back is then what was written, to the
order of a dict's keys and the last bit of a float.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, cast

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_SCALARS = frozenset({str, bool, type(None)})
_WIDEST = 1 << 63
_DEEPEST = 100


def encoded(value: object) -> bytes | None:
    """Return a value in JSON; None if JSON does not say all of it."""
    if not is_plain(value):
        return None
    try:
        return _encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):  # half a surrogate pair
        return None


def decoded(data: bytes) -> Any:
    """Read what `encoded` wrote. Raises msgspec.DecodeError where it is none."""
    return _decode(data)


def is_plain(value: object) -> bool:
    """Whether JSON says all of a value."""
    return _plain(value, set(), 0)


def _plain(value: object, seen: set[int], depth: int) -> bool:
    cls = type(value)
    if cls in _SCALARS:
        return True
    if cls is int:
        return -_WIDEST < cast("int", value) < _WIDEST
    if cls is float:
        return isfinite(cast("float", value))
    if (cls is not dict and cls is not list) or depth == _DEEPEST or id(value) in seen:
        return False
    seen.add(id(value))
    if cls is list:
        return all(_plain(item, seen, depth + 1) for item in cast("list[object]", value))
    for key, item in cast("dict[object, object]", value).items():
        if type(key) is not str or not _plain(item, seen, depth + 1):
            return False
    return True

"""Numpy dtypes as text and back, without evaluating anything."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from unbroken.errors import CorruptObject


def name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name: ``<f4``, ``<M8[ns]``, or JSON for a record: ``[["x","<f4"],…]``."""
    if dtype.names is None and dtype.subdtype is None:
        return dtype.str
    return msgspec.json.encode(np.lib.format.dtype_to_descr(dtype)).decode()


_WORD = re.compile(
    r"[<>|=]?(?:[?bBhHiIlLqQefdgFDGSUV]|[biufcSUV][0-9]{1,9}|[mM]8?(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?|O8?)"
)
"""Dtypes of one value. numpy hands any other text to Python's compiler, to see what it means."""


def _fields(descr: Any) -> Any:
    if isinstance(descr, str):
        return _checked(descr)
    if isinstance(descr, list):
        return [tuple(_fields(part) if i == 1 else _shape(part) for i, part in enumerate(f)) for f in descr]
    return descr


def _checked(text: str) -> str:
    if _WORD.fullmatch(text) is None:
        raise ValueError("no dtype of one value")
    return text


def _shape(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def parse(text: str) -> np.dtype[Any]:
    """Return the dtype that `name` wrote. Raises CorruptObject for anything else, and for objects."""
    try:
        if text.startswith(("[", '"')):
            dtype = np.lib.format.descr_to_dtype(_fields(msgspec.json.decode(text)))
        else:
            dtype = np.dtype(_checked(text))
    except (
        TypeError,
        ValueError,
        msgspec.DecodeError,
        SyntaxError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CorruptObject(f"{text[:60]!r} is not a dtype.") from error
    if dtype.hasobject:
        raise CorruptObject(f"The dtype {text[:60]!r} would hold Python objects.")
    return dtype

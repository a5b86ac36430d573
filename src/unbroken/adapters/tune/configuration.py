"""A name for what Tune has chosen for a trial, the same in every process.

Only what is plain counts by its value: numbers, strings, paths, arrays of numpy, and containers of them. Of a
function or a class it is the name, of any other object the class: where it lies in memory says nothing.

Not promised: that two configurations which differ in the inside of an object have two names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import numpy as np


def digest_of_config(config: Mapping[Any, object]) -> str:
    """Return a name of a configuration: equal ones have the same, in every process.

    >>> digest_of_config({"lr": 0.1, "loss": object()}) == digest_of_config({"loss": object(), "lr": 0.1})
    True
    """
    text = json.dumps(_plain(config, ()), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any, above: tuple[int, ...]) -> object:
    """Return a value as JSON can say it; `above` are the containers that it lies in."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return ["enum", _name(type(value)), value.name]
    if isinstance(value, np.generic):  # a number of numpy is the number: Tune samples both
        return _plain(value.item(), above) if type(value.item()) is not type(value) else repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ["array", str(value.dtype), list(value.shape), digest]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, os.PathLike):
        return ["path", os.fsdecode(value)]
    if isinstance(value, (int, float, str)):  # subclasses of them
        return [_name(type(value)), json.dumps(value)]
    if id(value) in above:
        return ["again", len(above) - above.index(id(value))]
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value):
            return {key: _plain(part, inside) for key, part in value.items()}
        # Keys of several types have no order of their own, and JSON would take 1 and "1" for the same.
        pairs = [[_plain(key, inside), _plain(part, inside)] for key, part in value.items()]
        return ["mapping", sorted(pairs, key=json.dumps)]
    if isinstance(value, (list, tuple)):
        return [_plain(part, inside) for part in value]
    if isinstance(value, AbstractSet):
        return ["set", sorted((_plain(part, inside) for part in value), key=json.dumps)]
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(own, str):
        return ["named", f"{getattr(value, '__module__', '')}.{own}"]
    return ["object", _name(type(value))]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"

"""Spaces of observations and actions, said without the package that made them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbroken.format.neutral import Number, Space, number
from unbroken.inspection.neutral.cursor import Cursor

_KINDS = {
    "Box": "box", "Discrete": "discrete", "MultiDiscrete": "multi-discrete", "MultiBinary": "multi-binary",
    "Dict": "dict", "Tuple": "tuple",
}  # fmt: skip


def space_of(at: Cursor) -> Space | None:
    """Return the space that stands here; None where no space does."""
    module, _, name = at.cls.partition(":")
    if module.partition(".")[0] not in ("gymnasium", "gym"):
        return None
    kind: Any = _KINDS.get(name, "other") if ".spaces." in module else "other"
    dtype = at.attr("dtype").plain()
    shape = at.attr("_shape").plain()
    told: dict[str, Any] = {
        "kind": kind,
        "class_": at.cls,
        "dtype": np.dtype(dtype).name if isinstance(dtype, str) else "",
        "shape": shape if isinstance(shape, list) else [],
    }
    if kind == "box":
        told |= {"low": _limit(at.attr("low").plain()), "high": _limit(at.attr("high").plain())}
    elif kind == "discrete":
        told |= {"sizes": [int(at.attr("n").plain())], "start": int(at.attr("start").plain() or 0)}
    elif kind == "multi-discrete":
        told |= {"sizes": [int(n) for n in np.ravel(at.attr("nvec").plain())]}
    elif kind in ("dict", "tuple"):
        told["spaces"] = {key: inner for key, one in at.attr("spaces").items() if (inner := space_of(one))}
    return Space(**told)


def _limit(values: NDArray[Any] | None) -> Number | list[Number] | None:
    if values is None:
        return None
    flat: list[float] = values.ravel().tolist()
    numbers: list[Number] = [number(value) for value in flat]
    if len(set(numbers)) == 1:
        return numbers[0]
    return numbers


def is_image(space: Space) -> bool:
    """Whether observations are images of bytes, which networks take divided by 255."""
    return (
        space.kind == "box"
        and len(space.shape) == 3
        and space.dtype == "uint8"
        and (space.low, space.high) == (0, 255)
    )


def size_of(space: Space) -> int:
    """How many elements one observation has."""
    return math.prod(space.shape)

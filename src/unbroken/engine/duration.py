"""Lengths of time, as people write them and as they are told."""

from __future__ import annotations

import math
import re
import sys

from unbroken.errors import ConfigError, shown

UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|)\s*")


def seconds_of(length: object, *, name: str) -> float:
    """Return the seconds of `length`: a number of them, or a text with a unit.

    Raises ConfigError with `name` if it is neither, or not above zero and finite.

    >>> seconds_of("5min", name="max_loss")
    300.0
    """
    if isinstance(length, str) and (written := _WRITTEN.fullmatch(length)):
        seconds = float(written[1]) * UNITS[written[2]]
    elif isinstance(length, (int, float)) and not isinstance(length, bool):
        seconds = float(length) if length <= sys.float_info.max else math.inf
    else:
        raise ConfigError(
            f"{name} must be a length of time, not {shown(length)}.",
            hint='Give seconds, or a text such as "90s", "5min" or "1h".',
        )
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{name} must be above zero and finite, not {shown(length)}.",
            hint='Give seconds, or a text such as "90s", "5min" or "1h".',
        )
    return seconds


def is_length(text: str) -> bool:
    """Whether a text is a length of time with a unit.

    >>> is_length("5min"), is_length("5")
    (True, False)
    """
    written = _WRITTEN.fullmatch(text)
    return bool(written and written[2])


def told(seconds: float) -> str:
    """Return a length of time in the unit that suits it, with three digits.

    >>> told(300), told(90), told(5400)
    ('5 min', '90 s', '1.5 h')
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def percent(share: float) -> str:
    """Return a share as it is told.

    >>> percent(0.02)
    '2 %'
    """
    return f"{100 * share:.3g} %"

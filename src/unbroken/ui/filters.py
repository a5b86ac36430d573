"""What templates may write behind a bar: how all pages tell sizes, times, counts and metrics.

Invariant: what nobody knows (None) is a dash, the same in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from unbroken.report.ending import ended
from unbroken.report.quantity import counted, moment, number, seconds, size

T = TypeVar("T")

NOTHING = "–"


def machine_time(time: float) -> str:
    """Return a time for the attribute of a `time` element; nothing of one that is no date."""
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return ""


def metric(value: float) -> str:
    """Return a metric's value.

    >>> metric(1234.5678), metric(float("nan"))
    ('1234.57', 'nan')
    """
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def metrics(values: Mapping[str, float]) -> str:
    """Return metrics in one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in sorted(values.items()))


def _known(write: Callable[[T], str]) -> Callable[[T | None], str]:
    """Return what writes a value, or a dash where nobody knows it."""
    return lambda value: NOTHING if value is None else write(value)


FILTERS: Mapping[str, Callable[..., str]] = {
    "size": _known(size),
    "number": _known(number),
    "seconds": _known(seconds),
    "moment": _known(moment),
    "machine_time": machine_time,
    "counted": counted,
    "ended": ended,
    "metric": metric,
    "metrics": metrics,
    "urlencode": partial(quote, errors="surrogatepass"),
}

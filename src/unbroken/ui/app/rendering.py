"""Templates and what they may call. Every text that goes into a page is escaped here, by Jinja, and nowhere else.

Not promised: that texts of runs are fit for a browser's script. None is ever put into one, except as JSON by `charts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from unbroken.report.position import where
from unbroken.report.quantity import counted, moment, number, seconds, size

T = TypeVar("T")

FOLDER = Path(__file__).parent.parent
TEMPLATES = FOLDER / "templates"
STATIC = FOLDER / "static"
NOTHING = "–"


def environment() -> jinja2.Environment:
    """Return the templates of the live pages. What a template misspells is an error, not an empty place."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = made.filters
    filters.update(FILTERS)
    names: dict[str, Any] = made.globals
    names["where"] = where
    return made


def told_moment(time: float) -> str:
    """Return a time for people; of a clock that was far off, its number."""
    try:
        return moment(time)
    except (OverflowError, ValueError, OSError):
        return f"{time:g}"


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
    "moment": told_moment,
    "machine_time": machine_time,
    "counted": counted,
    "metric": metric,
    "metrics": metrics,
}

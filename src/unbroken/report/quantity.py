"""Sizes, times and counts as people write them."""

from __future__ import annotations

from datetime import datetime, timezone


def size(nbytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least one.

    >>> size(999), size(2048), size(3 * 1024**2)
    ('999 B', '2.0 KiB', '3.0 MiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def seconds(value: float) -> str:
    """Return a duration.

    >>> seconds(0.00012), seconds(0.0123), seconds(9.87), seconds(3725)
    ('0.12 ms', '12 ms', '9.9 s', '1 h 02 min')
    """
    if value < 0.01:
        return f"{value * 1000:.2f} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value) // 60} min {int(value) % 60:02d} s"
    return f"{int(value) // 3600} h {int(value) % 3600 // 60:02d} min"


def moment(time: float) -> str:
    """Return a time of day in UTC; of a clock that was so far off that it is no date, its number.

    >>> moment(0), moment(1e300)
    ('1970-01-01 00:00:00Z', '1e+300')
    """
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{time:g}"


def number(value: int) -> str:
    """Return a count with its thousands apart.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "kill"), counted(3, "kill")
    ('1 kill', '3 kills')
    """
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"

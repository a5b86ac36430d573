"""Several measurements of one thing, as a table shows them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most.

    >>> Spread(0.2, 0.1, 0.4).text()
    '0.200 (0.100 to 0.400)'
    >>> Spread(0.00123, 0.00123, 0.00123).text()
    '0.0012'
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of some values, or None if there are none."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found)) if found else None

    def text(self) -> str:
        """Return what a cell shows."""
        if self.least == self.most:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.least)} to {_number(self.most)})"


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.4f}" if value < 0.02 else f"{value:.3f}" if value < 10 else f"{value:.1f}"

from __future__ import annotations

import doctest

from benchmarks import spread
from benchmarks.spread import Spread


def test_examples() -> None:
    found = doctest.testmod(spread)
    assert found.attempted and not found.failed


def test_a_spread_has_the_median_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([]) is None

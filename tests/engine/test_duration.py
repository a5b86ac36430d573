"""Lengths of time are read as people write them, and nothing else is."""

from __future__ import annotations

import math

import pytest

from unbroken.engine.duration import percent, seconds_of, told
from unbroken.errors import ConfigError


@pytest.mark.parametrize(
    ("length", "seconds"),
    [
        (300, 300.0), (0.5, 0.5), ("300", 300.0), ("90s", 90.0), ("5min", 300.0),
        (" 5 min ", 300.0), ("1h", 3600.0), ("1.5h", 5400.0),
    ],
)  # fmt: skip
def test_numbers_and_texts(length: object, seconds: float) -> None:
    assert seconds_of(length, name="max_loss") == seconds


@pytest.mark.parametrize(
    "length",
    [0, -1, "0s", "-5min", "5 hours ago", "min", "", "1e3s", "5m", True, None, [5], math.inf, math.nan],
)
def test_what_is_no_length_of_time_is_refused_by_name(length: object) -> None:
    with pytest.raises(ConfigError, match=r"^max_loss must be") as raised:
        seconds_of(length, name="max_loss")
    assert "5min" in raised.value.hint


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "0.0123 s"),
        (90, "90 s"),
        (119.6, "120 s"),
        (300, "5 min"),
        (301, "5.02 min"),
        (5400, "1.5 h"),
    ],
)
def test_a_length_is_told_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert told(seconds) == text


def test_a_share_is_told_in_percent() -> None:
    assert (percent(0.02), percent(0.12345)) == ("2 %", "12.3 %")

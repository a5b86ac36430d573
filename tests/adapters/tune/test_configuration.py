"""The name of a configuration: the same in every process, and no other's."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.tune")


class Model:
    """Anything that a person may put into a configuration."""


class Loss(Enum):
    HUBER = "huber"
    SQUARE = "square"


def digest(config: Any) -> str:
    from unbroken.adapters.tune.configuration import digest_of_config

    return digest_of_config(config)


def test_equal_configurations_have_one_name() -> None:
    assert digest({"a": 1, "b": [2.5]}) == digest({"b": [2.5], "a": 1})
    assert digest({"n": np.int64(3), "x": np.float64(0.5)}) == digest({"n": 3, "x": 0.5})


def test_where_an_object_lies_in_memory_says_nothing() -> None:
    made = [
        {"model": Model(), "schedule": lambda step: step, "shape": {1: "a", "b": 2, None: 3}} for _ in "ab"
    ]
    assert digest(made[0]) == digest(made[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, "1"),
        (1, True),
        ({1: "a"}, {"1": "a"}),
        ({1: "a", "b": 2}, {1: "a", "b": 3}),
        (np.int64(1), np.int64(2)),
        (np.zeros(2), np.ones(2)),
        (np.zeros(2), np.zeros(2, np.float32)),
        ({1, 2}, {1, 3}),
        (b"a", b"b"),
        (Path("a"), Path("b")),
        (Loss.HUBER, Loss.SQUARE),
        (np.sin, np.cos),
        (max, min),
        (Model, Loss),
        (Model(), Loss.HUBER),
    ],
)
def test_what_is_plain_or_has_a_name_tells_two_configurations_apart(one: object, other: object) -> None:
    assert digest({"value": one}) != digest({"value": other})


def test_what_contains_itself_has_a_name() -> None:
    loops: list[list[Any]] = [[1], [1], [2]]
    for loop in loops:
        loop.append(loop)
    assert digest({"loop": loops[0]}) == digest({"loop": loops[1]}) != digest({"loop": loops[2]})

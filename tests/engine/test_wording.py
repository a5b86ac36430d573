"""Changes in the words of people: one line each, the cause first, many of a kind counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unbroken.engine.changes import find_changes
from unbroken.engine.wording import (
    CAUSE,
    CONSEQUENCE,
    Words,
    lines,
    subject_of,
    words_of_change,
    words_of_difference,
)
from unbroken.state.graft import Difference
from unbroken.state.policy import Policy
from unbroken.state.walk import capture


def told(before: Any, after: Any) -> Words:
    states = [capture({"x": value}, Policy(), contents=False) for value in (before, after)]
    (change,) = find_changes(states[0], states[1], states[0])
    return words_of_change(change)


def test_modules_are_called_as_pytorch_calls_them() -> None:
    place = "model/policy/_modules/net/_modules/0/_parameters/weight"
    assert subject_of(place) == "model/policy net.0.weight"
    assert subject_of("model/gamma") == "model/gamma"
    assert subject_of("logger/time~1fps") == "logger/time/fps"


def double(x: float) -> float:
    return 2 * x


class Part:
    pass


def test_values_are_shown_and_never_their_bytes() -> None:
    np = pytest.importorskip("numpy")
    assert told(np.int64(2), np.int64(3)).text == "2 -> 3"
    assert told(np.float32(0.5), np.float32(0.25)).text == "0.5 -> 0.25"
    assert told(np.zeros((2, 3)), np.zeros((4, 3))).text == "(2, 3) -> (4, 3)"
    assert told(np.zeros(2), np.zeros(2, np.float32)).text == "array <f8 [2] -> array <f4 [2]"
    assert told([64, 64], [32]).text == "[64, 64] -> [32]"
    assert told((1,), (1, 2.5)).text == "(1,) -> (1, 2.5)"
    assert told(double, lambda x: x).text == "double -> a lambda"
    assert told(lambda x: x, lambda x: 3 * x).text == "a lambda has other code"
    assert told(Part(), None).text == "Part -> None"


def test_what_a_plan_found_is_told_without_modules() -> None:
    found = Difference(
        "error", "model/env", "a.b.c:Monitor was saved and the program has my.own:Wrapped here."
    )
    assert words_of_difference(found).text == "Monitor was saved and the program has Wrapped here."


def test_one_line_for_each_subject_that_of_the_smallest_order() -> None:
    rate = Words(subject="learning_rate", before="1", after="2", order=(1,))
    assert lines([replace(rate, detail="deep", order=(5,)), rate]) == ["learning_rate: 1 -> 2"]


def test_the_cause_comes_first_and_what_is_alike_is_counted() -> None:
    tensors = [
        Words(
            subject=f"layer {n}", before="(2,)", after="(3,)", rank=CONSEQUENCE, alike="tensors", order=(-n,)
        )
        for n in range(4)
    ]
    cause = Words(subject="net_arch", before="[2]", after="[3]", rank=CAUSE)
    usual = Words(subject="gamma", before="1", after="2", effect="the new one is used")
    assert lines([*tensors, usual, cause]) == [
        "net_arch: [2] -> [3]",
        "gamma: 1 -> 2 (the new one is used)",
        "layer 3: (2,) -> (3,), and 3 more tensors",
    ]
    assert lines(tensors[:2]) == ["layer 1: (2,) -> (3,), and one more"]

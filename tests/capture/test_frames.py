"""Suspended generators: what of them comes back, and what is said to start anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from unbroken.capture.frames import frame_policy, read_later, stand_of
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.state.snapshot import Snapshot
from unbroken.types import Fidelity


class Stream:
    """A data stream with a generator; what it needs it keeps in attributes."""

    def __init__(self, kind: str) -> None:
        self.rng = random.Random(1)
        self.count = 0
        self.pass_: Iterator[Any] = getattr(self, kind)()

    def step(self) -> float:
        self.count += 1
        return self.rng.random()

    def endless(self) -> Iterator[float]:
        while True:
            total = 0.0
            for _ in range(3):
                total += self.step()
            yield total

    def with_array(self) -> Iterator[float]:
        seen = np.zeros(3)
        while True:
            seen += self.step()
            yield float(seen.sum())

    def counting(self) -> Iterator[int]:
        n = 0
        while True:
            n += 1
            self.step()
            yield n

    def in_a_loop(self) -> Iterator[float]:
        for _ in range(100):
            yield self.step()

    def in_two_places(self) -> Iterator[float]:
        while True:
            yield self.step()
            yield -self.step()

    def from_another(self) -> Iterator[float]:
        yield from self.in_a_loop()


def source(stream: Stream) -> GraftSource:
    return GraftSource({"stream": stream}, policy_of_loaded(frame_policy()))


def after(kind: str, draws: int) -> tuple[Snapshot, Stream]:
    """Return what is saved after so many further draws of a stream that stood at its first one."""
    stream = Stream(kind)
    next(stream.pass_)
    over = source(stream)
    over.capture()
    for _ in range(draws):
        next(stream.pass_)
    return over.capture(), stream


def promised(snapshot: Snapshot) -> tuple[Fidelity, str]:
    promise = snapshot.promises["training_state"]
    return promise.fidelity, promise.reason


@pytest.mark.parametrize("kind", ["endless", "with_array"])
def test_a_stream_that_stands_where_it_stood_at_first_goes_on(
    kind: str, travel: Callable[[Snapshot], Snapshot]
) -> None:
    saved, stream = after(kind, 5)
    assert promised(saved)[0] is Fidelity.EXACT
    twin = Stream(kind)
    next(twin.pass_)
    over = source(twin)
    over.skeleton()
    over.plan(travel(saved)).apply()
    assert [next(twin.pass_) for _ in range(4)] == [next(stream.pass_) for _ in range(4)]
    assert twin.count == stream.count


@pytest.mark.parametrize(
    ("kind", "draws", "why"),
    [
        ("counting", 1, "local variable 'n'"),
        ("in_a_loop", 1, "`for` loop"),
        ("in_two_places", 1, "another `yield`"),
        ("from_another", 1, "`for` loop"),
    ],
)
def test_one_that_stands_elsewhere_starts_anew_and_that_is_said(
    kind: str, draws: int, why: str, travel: Callable[[Snapshot], Snapshot]
) -> None:
    saved, _ = after(kind, draws)
    fidelity, reason = promised(saved)
    assert fidelity is Fidelity.APPROXIMATE
    assert why in reason
    assert f"Stream.{kind}" in reason
    twin = Stream(kind)
    next(twin.pass_)
    over = source(twin)
    over.skeleton()
    plan = over.plan(travel(saved))
    assert not plan.errors
    assert any("starts anew" in str(d) for d in plan.differences)
    plan.apply()
    next(twin.pass_)


def test_another_function_stays_the_programs_own() -> None:
    saved, _ = after("endless", 2)
    twin = Stream("in_two_places")
    plan = source(twin).plan(saved)
    assert not plan.errors
    assert any("Stream.in_two_places stays" in str(d) for d in plan.differences)


def test_only_variables_that_are_read_again_count() -> None:
    def function(a: int, b: int, c: int) -> Iterator[int]:
        while a:
            dead = b
            yield dead
            if random.random() < 0.5:
                b = c
        yield a

    generator: Any = function(1, 2, 3)
    next(generator)
    assert read_later(generator.gi_code, generator.gi_frame.f_lasti) == {"a", "b", "c"}
    assert stand_of(generator).variables == {"a": 1, "b": 2, "c": 3}
    generator.close()
    assert stand_of(generator).variables == {}


def test_a_variable_of_an_inner_function_counts() -> None:
    def function() -> Iterator[int]:
        n = 0

        def look() -> int:
            return n

        while True:
            yield look()

    generator: Any = function()
    next(generator)
    assert "n" in stand_of(generator).variables

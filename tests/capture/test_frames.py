"""Suspended generators: what of them comes back, and what is said to start anew."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from unbroken.capture.frames import FrameCodec, frame_policy, loops_around, read_later, stand_of
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.uncovered import UncoveredWarning
from unbroken.state.snapshot import Snapshot
from unbroken.types import Fidelity


class Countdown(Iterator[int]):
    """An iterator of one's own, in Python."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


class Half(zip):  # type: ignore[type-arg]
    """An iterator of one's own, of which C holds the better part."""


POLICY = policy_of_loaded(frame_policy())


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

    def enumerating(self) -> Iterator[float]:
        for i, _ in enumerate(range(100)):
            yield self.step() + i

    def zipping(self) -> Iterator[float]:
        for a, b in zip(range(100), [*range(100)], strict=True):
            yield self.step() + a + b

    def mapping(self) -> Iterator[float]:
        yield from map(float, filter(None, reversed(range(100))))

    def numbering(self) -> Iterator[float]:
        for i in itertools.count():
            yield self.step() + i

    def through_a_file(self) -> Iterator[str]:
        with open(__file__) as file:
            for line in file:
                yield line.strip()

    def lines_of_a_file(self) -> Iterator[str]:
        with open(__file__) as file:
            while True:
                yield file.readline()

    def cycling(self) -> Iterator[float]:
        for i in itertools.cycle([1, 2, 3]):
            yield self.step() + i

    def over_a_dict(self) -> Iterator[str]:
        yield from dict.fromkeys("abcdefg")

    def over_a_mix(self) -> Iterator[int]:
        for i, _ in Half(range(100), range(100)):
            yield i

    def scalar(self) -> Iterator[Any]:
        total = np.float64(0)
        while True:
            total += self.step()
            yield total

    def in_an_expression(self) -> Iterator[float]:
        while True:
            self.last = [self.count, (yield self.step())]

    def with_own_iterator(self) -> Iterator[Any]:
        for i in Countdown(100):
            yield i, self.step()

    def with_pairs_of_own(self) -> Iterator[Any]:
        while True:
            for i, x in zip(Countdown(2), self.endless(), strict=False):
                while True:
                    yield i, x, self.step()

    def with_method(self) -> Iterator[float]:
        step, add = self.step, functools.partial(sum, (1.0, 2.0))
        while True:
            yield step() + add()

    def with_tuple(self) -> Iterator[float]:
        seen = (np.zeros(3), [0.0])
        while True:
            seen[0][:] += self.step()
            seen[1][0] += self.step()
            yield float(seen[0].sum() + seen[1][0])

    def with_inner(self) -> Iterator[float]:
        yield from self.with_array()

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


@pytest.mark.parametrize(
    "kind",
    [
        "endless", "with_array", "with_own_iterator", "with_pairs_of_own", "with_method", "with_tuple", "with_inner",
    ],
)  # fmt: skip
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


@pytest.mark.filterwarnings(
    "ignore::unbroken.capture.uncovered.UncoveredWarning"
)  # the second capture says it too
@pytest.mark.parametrize(
    ("kind", "named", "why"),
    [
        ("counting", "counting", "local variable 'n'"),
        ("in_a_loop", "in_a_loop", "`for` loop"),
        ("in_two_places", "in_two_places", "another `yield`"),
        ("from_another", "in_a_loop", "`for` loop"),
        ("enumerating", "enumerating", "`for` loop"),
        ("zipping", "zipping", "`for` loop"),
        ("mapping", "mapping", "`for` loop"),
        ("numbering", "numbering", "`for` loop"),
        ("through_a_file", "through_a_file", "open TextIOWrapper (/"),
        ("lines_of_a_file", "lines_of_a_file", "open TextIOWrapper (/"),
        ("cycling", "cycling", "how far the itertools:cycle in it is"),
        ("over_a_dict", "over_a_dict", "how far the dict_keyiterator in it is"),
        ("over_a_mix", "over_a_mix", "test_frames:Half in it is"),
        ("scalar", "scalar", "local variable 'total'"),
        ("in_an_expression", "in_an_expression", "in the middle of an expression"),
    ],
)
def test_one_that_stands_elsewhere_starts_anew_and_that_is_said(
    kind: str, named: str, why: str, travel: Callable[[Snapshot], Snapshot]
) -> None:
    saved, _ = after(kind, 1)
    fidelity, reason = promised(saved)
    assert fidelity is Fidelity.APPROXIMATE
    assert why in reason
    assert f"Stream.{named} starts anew" in reason
    twin = Stream(kind)
    next(twin.pass_)
    over = source(twin)
    over.skeleton()
    plan = over.plan(travel(saved))
    assert not plan.errors
    assert any("starts anew" in str(d) for d in plan.differences)
    plan.apply()
    assert promised(over.capture())[0] is Fidelity.APPROXIMATE, "what goes on from here is another run"
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
    stand = stand_of(generator, POLICY)
    assert {name: piece.text for name, piece in stand.pieces.items()} == {"a": "1", "b": "2", "c": "3"}
    generator.close()
    assert stand_of(generator, POLICY).pieces == {}


def test_a_variable_of_an_inner_function_counts() -> None:
    def function() -> Iterator[int]:
        n = 0

        def look() -> int:
            return n

        while True:
            yield look()

    generator: Any = function()
    next(generator)
    assert "n" in stand_of(generator, POLICY).pieces


class Two:
    """Two streams of one class, one of which is a draw ahead."""

    def __init__(self) -> None:
        self.streams = [Stream("in_a_loop"), Stream("in_a_loop")]
        next(self.streams[0].pass_)
        for _ in range(2):
            next(self.streams[1].pass_)


def test_two_of_one_class_are_told_apart() -> None:
    two = Two()
    over = GraftSource({"two": two}, policy_of_loaded(frame_policy()))
    over.skeleton()
    assert promised(over.capture())[0] is Fidelity.EXACT
    next(two.streams[0].pass_)  # and now they stand alike
    with pytest.warns(UncoveredWarning, match="only approximately"):
        assert promised(over.capture())[0] is Fidelity.APPROXIMATE


def test_one_that_was_not_there_at_the_start_starts_anew() -> None:
    class Late:
        pass_: Any = None

    late, codec = Late(), FrameCodec()
    over = GraftSource({"late": late}, policy_of_loaded(frame_policy(codec)))
    over.skeleton()
    codec.begun()
    late.pass_ = Stream("endless").pass_
    next(late.pass_)
    saved = over.capture()
    assert "none here at the start" in promised(saved)[1]
    twin = Late()
    plan = GraftSource({"late": twin}, policy_of_loaded(frame_policy())).plan(saved)
    assert not plan.errors
    plan.apply()
    assert twin.pass_ is None


def test_one_that_is_running_says_so() -> None:
    found: list[str] = []

    def function() -> Iterator[None]:
        found.append(stand_of(generator, POLICY).unreadable)
        yield

    generator: Any = function()
    next(generator)
    assert found == ["it is running at this moment"]


def test_a_loop_whose_iterator_cannot_be_found_is_counted() -> None:
    def function() -> Iterator[int]:
        yield 0
        for a in range(3):
            for b in range(3):
                yield a + b
        yield 9

    generator: Any = function()
    depths = [loops_around(generator.gi_code, generator.gi_frame.f_lasti) for _ in generator]
    assert depths == [0, *[2] * 9, 0]

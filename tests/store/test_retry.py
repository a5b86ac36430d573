from __future__ import annotations

import random

import pytest

from unbroken.errors import StoreDenied, StoreUnavailable
from unbroken.store.retry import Retry


class Line:
    """A connection that fails so many times, on a clock that only sleeping and failing move."""

    def __init__(self, failures: int, *, seconds: float = 0.0) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.calls = 0
        self._failures = failures
        self._seconds = seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def call(self) -> str:
        self.calls += 1
        self.now += self._seconds
        if self.calls <= self._failures:
            raise StoreUnavailable("No answer.", key="k")
        return "done"

    def retry(self, *, draw: float = 1.0, attempts: int = 6, most: float = 5.0) -> Retry:
        return Retry(
            attempts=attempts, most=most, clock=lambda: self.now, sleep=self.sleep, draw=lambda: draw
        )


def test_pauses_double_up_to_the_most_and_are_shorter_at_random() -> None:
    line = Line(5)
    assert line.retry(most=0.5).call(line.call) == "done"
    assert line.pauses == [0.1, 0.2, 0.4, 0.5, 0.5]
    line = Line(2)
    line.retry(draw=0.0).call(line.call)
    assert line.pauses == [0.05, 0.1]


def test_attempts_are_bounded_and_counted() -> None:
    line = Line(99)
    with pytest.raises(StoreUnavailable, match=r"^No answer\. It was tried 3 times\. Try again") as caught:
        line.retry(attempts=3).call(line.call)
    assert caught.value.key == "k"
    assert line.calls == 3


def test_time_is_bounded_too() -> None:
    line = Line(99, seconds=10.0)
    with pytest.raises(StoreUnavailable, match="tried 3 times"):
        line.retry().call(line.call)
    assert line.now < 31


def test_what_will_not_get_better_is_not_repeated() -> None:
    calls: list[int] = []

    def denied() -> None:
        calls.append(1)
        raise StoreDenied("No.")

    with pytest.raises(StoreDenied):
        Retry(sleep=lambda seconds: None).call(denied)
    assert calls == [1]


def test_one_attempt_says_nothing_of_attempts() -> None:
    line = Line(1)
    with pytest.raises(StoreUnavailable, match=r"^No answer\. Try again"):
        line.retry(attempts=1).call(line.call)


def test_a_store_that_fails_in_passing_changes_nothing_that_a_training_draws() -> None:
    line = Line(3)
    before = random.getstate()
    assert Retry(sleep=line.sleep).call(line.call) == "done"
    assert len(set(line.pauses)) == 3
    assert random.getstate() == before

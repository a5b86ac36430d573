"""What is known to take long, and what is not."""

from __future__ import annotations

from unbroken.adapters.sb3.stretches import Stretches


def test_only_what_was_measured_to_take_long_is_long() -> None:
    now = [0.0]
    stretches = Stretches(30.0, lambda: now[0])

    def took(seconds: float, *names: str) -> None:
        stretches.begin(names)
        now[0] += seconds
        stretches.end()

    assert not stretches.is_long("train")
    took(31, "train")
    assert stretches.is_long("train")
    assert not stretches.is_long("evaluation")
    took(2, "train")
    assert not stretches.is_long("train"), "the last time counts"
    took(40, "evaluation", "another")
    assert stretches.is_long("evaluation")
    assert stretches.is_long("another")
    now[0] += 99
    stretches.end()
    assert not stretches.is_long("train"), "it was over already"
    assert Stretches(0, lambda: 0.0).is_long("whatever")

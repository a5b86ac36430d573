"""The schedule fires by crossing, whatever the step width, and refuses intervals that make no sense."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.simulation import Clock
from unbroken.engine.schedule import DEFAULT_EVERY, Every, Schedule
from unbroken.errors import ConfigError


@settings(deadline=None)
@given(every=st.integers(1, 50), width=st.integers(1, 70), steps=st.integers(1, 400))
def test_every_multiple_that_is_crossed_gives_exactly_one_save(every: int, width: int, steps: int) -> None:
    schedule = Schedule(Every(steps=every), Clock())
    before = 0
    for step in range(width, steps * width, width):
        crossed = step // every > before // every
        assert bool(schedule.due(step)) == crossed
        if crossed:
            schedule.saved(step, blocked=0.0)
        before = step


def test_a_width_that_does_not_divide_the_interval_still_saves() -> None:
    schedule = Schedule(Every(steps=1000), Clock())
    assert not schedule.due(999)
    assert schedule.due(1002) == "every 1,000 steps"


def test_asking_changes_nothing_so_a_waiting_save_stays_due() -> None:
    schedule = Schedule(Every(steps=10), Clock())
    assert schedule.due(10)
    assert schedule.due(11)
    schedule.saved(11, blocked=0.0)
    assert not schedule.due(19)
    assert schedule.due(20)


def test_the_grid_does_not_move_with_a_resume() -> None:
    schedule = Schedule(Every(steps=1000), Clock(), step=1503)
    assert not schedule.due(1999)
    assert schedule.due(2000)


def test_seconds_are_counted_from_the_last_save_of_any_reason() -> None:
    clock = Clock()
    schedule = Schedule(Every(seconds=60, steps=1000), clock)
    clock.now += 59.9
    assert not schedule.due(1)
    clock.now += 0.2
    assert schedule.due(1) == "every 60 seconds"
    schedule.saved(1, blocked=0.0)
    assert not schedule.due(2)


def test_of_budgets_and_intervals_the_first_that_is_due_counts() -> None:
    clock = Clock()
    schedule = Schedule(Every(steps=1000, seconds=200, max_loss="5min", max_overhead=0.02), clock)
    assert schedule.due(1000) == "every 1,000 steps"
    clock.now += 200
    assert schedule.due(1) == "every 200 seconds"
    schedule = Schedule(Every(seconds=400, max_loss="5min"), clock)
    clock.now += 300
    assert schedule.due(1) == "5 min of work at risk"


def test_episodes_are_counted_by_crossing() -> None:
    schedule = Schedule(Every(episodes=10), Clock(), episodes=12)
    assert not schedule.due(5, 19)
    assert schedule.due(6, 23) == "every 10 episodes"


def test_the_default_is_the_two_budgets() -> None:
    assert Every(max_loss=300, max_overhead=0.02) == DEFAULT_EVERY
    assert str(DEFAULT_EVERY) == "5 min of work at risk or 2 % of the time for saving"


@pytest.mark.parametrize("name", ["steps", "seconds", "episodes"])
@pytest.mark.parametrize("value", [0, -1, True, "10", math.inf, math.nan])
def test_an_interval_that_never_ends_or_never_begins_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        Every(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, 2, -0.1, True, "2 %", math.inf, math.nan])
def test_a_share_lies_between_nothing_and_all(value: object) -> None:
    with pytest.raises(ConfigError, match="max_overhead") as raised:
        Every(max_overhead=value)  # type: ignore[arg-type]
    assert "max_overhead=0.02" in raised.value.hint


@pytest.mark.parametrize("value", [0, "soon", "5 weeks", True])
def test_a_loss_is_a_length_of_time(value: object) -> None:
    with pytest.raises(ConfigError, match="max_loss"):
        Every(max_loss=value)  # type: ignore[arg-type]


def test_a_loss_is_the_same_however_it_is_written() -> None:
    assert Every(max_loss="5min") == Every(max_loss=300) == Every(max_loss="300s")
    assert hash(Every(max_loss="1h")) == hash(Every(max_loss=3600.0))


@pytest.mark.parametrize("value", [2.5, 1e3])
def test_steps_are_whole(value: object) -> None:
    with pytest.raises(ConfigError, match="whole"):
        Every(steps=value)  # type: ignore[arg-type]


def test_no_interval_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no interval"):
        Every()


def test_a_plain_number_means_steps() -> None:
    assert Every.of(500) == Every(steps=500)
    with pytest.raises(ConfigError, match="steps"):
        Every.of(0)
    with pytest.raises(ConfigError, match="no interval"):
        Every.of(2.5)  # type: ignore[arg-type]


def test_a_text_means_what_a_variable_would_say() -> None:
    assert Every.of("500") == Every(steps=500)
    assert Every.of("max_loss=5min,steps=9") == Every(steps=9, max_loss="5min")

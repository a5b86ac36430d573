"""Budgets hold over whole trainings on a virtual clock, and where they cannot, it is said."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engine.simulation import Clock, Cost, simulate
from unbroken.engine.budget import HEADROOM
from unbroken.engine.schedule import Every, Schedule

STEP = 0.25
CHEAP = Cost(blocked=0.1, durable=2.0, busy=2.4)


def near(seconds: float) -> object:
    """A save happens at the first step that is due, not at the very moment."""
    return pytest.approx(seconds, abs=2 * STEP)


def test_saves_are_as_rare_as_the_loss_allows() -> None:
    outcome = simulate(Every(max_loss=300), lambda _n: CHEAP, saves=10, step=STEP)
    assert outcome.pauses == [near(300 - HEADROOM * CHEAP.durable)] * 9
    assert max(outcome.losses) <= 300
    assert outcome.said == []


def test_with_both_the_loss_decides() -> None:
    alone = simulate(Every(max_loss=300), lambda _n: CHEAP, saves=5, step=STEP)
    both = simulate(Every(max_loss=300, max_overhead=0.02), lambda _n: CHEAP, saves=5, step=STEP)
    assert both == alone


def test_saves_are_as_frequent_as_the_overhead_allows() -> None:
    outcome = simulate(Every(max_overhead=0.02), lambda _n: CHEAP, saves=10, step=STEP)
    assert outcome.pauses == [near(CHEAP.share / 0.02)] * 9
    assert 0.019 < outcome.share <= 0.02


def test_the_interval_follows_dearer_and_then_cheaper_saves() -> None:
    costs = [CHEAP] * 6 + [CHEAP.times(20)] * 8 + [CHEAP] * 8
    loss = simulate(Every(max_loss=300), costs.__getitem__, saves=len(costs), step=STEP).pauses
    assert (loss[4], loss[12], loss[20]) == (near(297.5), near(250), near(297.5))
    share = simulate(Every(max_overhead=0.1), costs.__getitem__, saves=len(costs), step=STEP).pauses
    assert (share[4], share[12], share[20]) == (near(25), near(500), near(25))


def test_one_outlier_does_not_move_the_bound_on_the_loss() -> None:
    costs = [CHEAP.times(50) if n == 6 else CHEAP for n in range(12)]
    pauses = simulate(Every(max_loss=300), costs.__getitem__, saves=12, step=STEP).pauses
    assert pauses == [near(297.5)] * 11


def test_the_first_save_of_a_filled_buffer_is_believed_at_once() -> None:
    costs = [CHEAP.times(0.01)] + [CHEAP.times(20)] * 3
    pauses = simulate(Every(max_loss=300), costs.__getitem__, saves=4, step=STEP).pauses
    assert pauses == [near(300), near(250), near(250)]


def test_an_outlier_is_paid_back_over_several_saves() -> None:
    costs = [CHEAP.times(5) if n == 6 else CHEAP for n in range(20)]
    outcome = simulate(Every(max_overhead=0.02), costs.__getitem__, saves=20, step=STEP)
    assert max(outcome.pauses) == near(2 * CHEAP.share / 0.02)
    assert outcome.pauses[-1] == near(CHEAP.share / 0.02)
    assert outcome.share <= 0.02


def test_a_cost_that_grows_stays_within_both_bounds() -> None:
    def growing(n: int) -> Cost:
        return CHEAP.times(1.05**n)

    assert max(simulate(Every(max_loss=300), growing, saves=60, step=STEP).losses) <= 300 + STEP
    assert simulate(Every(max_overhead=0.02), growing, saves=60, step=STEP).share <= 0.02


def test_saves_that_cost_nothing() -> None:
    free = Cost(0, 0, 0)
    assert simulate(Every(max_loss=60), lambda _n: free, saves=5, step=STEP).pauses == [near(60)] * 4
    often = simulate(Every(max_overhead=0.02), lambda _n: free, saves=5, step=STEP)
    assert often.pauses == [near(10)] * 4


def test_a_save_comes_before_a_stretch_in_which_none_is_possible() -> None:
    outcome = simulate(Every(max_loss=300), lambda _n: CHEAP, saves=40, step=STEP, rollout=200, update=35.0)
    # The very first stretch is met unprepared; none is longer than an update and a step.
    assert max(outcome.losses[1:]) <= 300
    assert min(outcome.losses[1:]) > 300 - 2 * (35 + STEP)


def test_a_stretch_that_does_not_come_again_is_forgotten() -> None:
    clock = Clock()
    schedule = Schedule(Every(max_loss=100), clock)
    waited: list[float] = []
    for save in range(4):
        schedule.saved(0, blocked=0)
        schedule.written(durable=0, busy=0)
        clock.now += 40 if save == 0 else 1
        waited.append(due_after(schedule, clock))
    # 40 s in the first interval, then 60 s that may end in 40 more; the next knows of it, the last no longer.
    assert waited == [20, 59, 98, 98]


def test_neither_the_copy_nor_waiting_for_the_writer_is_no_stretch() -> None:
    clock = Clock()
    schedule = Schedule(Every(max_loss=100), clock)
    for _ in range(3):
        clock.now += 30
        schedule.saved(0, blocked=30)
        assert not schedule.due(0)
        clock.now += 30
        schedule.written(durable=0, busy=30)
        assert due_after(schedule, clock) == 69


@settings(deadline=None)
@given(
    base=st.floats(0.001, 60),
    growth=st.floats(0.99, 1.01),
    jitter=st.lists(st.floats(0.9, 1.1), min_size=30, max_size=30),
    blocked=st.floats(0, 1),
    retention=st.floats(0, 1),
    max_loss=st.floats(20, 600),
)
def test_the_loss_is_bounded_whenever_a_save_fits_into_it(
    base: float, growth: float, jitter: list[float], blocked: float, retention: float, max_loss: float
) -> None:
    costs = [
        Cost(base * blocked, base, base * (1 + retention)).times(growth**n * factor)
        for n, factor in enumerate(jitter)
    ]
    # One save at a time: what can be held at all is a write and, after it, one more.
    assume(all(a.busy + b.durable < max_loss for a, b in pairwise(costs)))
    assume(all(c.durable < max_loss / HEADROOM for c in costs))
    outcome = simulate(Every(max_loss=max_loss), costs.__getitem__, saves=30, step=1.0)
    assert max(outcome.losses) <= max_loss + 2.0
    assert outcome.said == [] or max(c.busy + c.durable for c in costs) > max_loss


@settings(deadline=None)
@given(
    base=st.floats(0.01, 20),
    growth=st.floats(0.97, 1.03),
    jitter=st.lists(st.floats(0.75, 1.25), min_size=30, max_size=30),
    blocked=st.floats(0, 1),
    max_overhead=st.floats(0.01, 0.3),
)
def test_the_overhead_is_bounded(
    base: float, growth: float, jitter: list[float], blocked: float, max_overhead: float
) -> None:
    costs = [Cost(base * blocked, base, base).times(growth**n * f) for n, f in enumerate(jitter)]
    outcome = simulate(Every(max_overhead=max_overhead), costs.__getitem__, saves=30, step=1.0)
    assert outcome.share <= max_overhead * 1.001
    assert min(outcome.pauses) >= 10 - 1e-6


@settings(deadline=None)
@given(
    blocked=st.floats(0, 20),
    durable=st.floats(0.1, 100),
    retention=st.floats(0, 10),
    max_loss=st.floats(60, 600),
    max_overhead=st.floats(0.01, 0.5),
)
def test_it_is_said_exactly_where_both_cannot_hold(
    blocked: float, durable: float, retention: float, max_loss: float, max_overhead: float
) -> None:
    cost = Cost(blocked, durable, durable + retention)
    outcome = simulate(
        Every(max_loss=max_loss, max_overhead=max_overhead), lambda _n: cost, saves=12, step=1.0
    )
    held, spent = (cost.busy + cost.durable) / max_loss, outcome.share / max_overhead
    assume(not any(0.95 < ratio < 1.05 for ratio in (held, spent)))  # what a step more or less decides
    assert bool(outcome.said) == (held > 1 or spent > 1)
    assert len(outcome.said) <= 1


BOTH = Every(max_loss="5min", max_overhead=0.02)
DEAR = Cost(blocked=2.0, durable=20.0, busy=22.0)


def test_where_both_cannot_hold_the_figures_and_the_next_step_are_said_once() -> None:
    outcome = simulate(BOTH, lambda _n: DEAR, saves=20)
    (text,) = outcome.said
    assert text == (
        "A loss of at most 5 min and 2 % of the time for saving cannot both be held: training stands still"
        " for 2 s and the writer works for 22 s every 4.61 min, which is 8.67 % of the time. The bound on the"
        ' loss is kept. Give max_loss="21min", or max_overhead=0.087.'
    )
    assert max(outcome.losses) <= 300


@settings(deadline=None)
@given(
    blocked=st.floats(0, 5),
    durable=st.floats(0.1, 100),
    retention=st.floats(0, 10),
    max_loss=st.floats(60, 600),
    max_overhead=st.floats(0.01, 0.3),
)
def test_the_advice_holds(
    blocked: float, durable: float, retention: float, max_loss: float, max_overhead: float
) -> None:
    cost = Cost(blocked, durable, durable + retention)
    every = Every(max_loss=max_loss, max_overhead=max_overhead)
    for text in simulate(every, lambda _n: cost, saves=5, step=1.0).said:
        advised = dict(re.findall(r'(max_loss|max_overhead)="?(\d[\w.]*\w)', text.partition(" Give ")[2]))
        assert "max_loss" in advised
        if "cannot be held" in text:
            longer = Every(max_loss=advised["max_loss"])
        else:
            longer = Every(max_loss=advised["max_loss"], max_overhead=max_overhead)
        assert simulate(longer, lambda _n: cost, saves=8, step=1.0).said == []
        if "max_overhead" in advised:
            more = Every(max_loss=max_loss, max_overhead=float(advised["max_overhead"]))
            assert simulate(more, lambda _n: cost, saves=8, step=1.0).said == []


def test_no_share_is_advised_that_is_none() -> None:
    (text,) = simulate(Every(max_loss=300, max_overhead=0.5), lambda _n: Cost(0, 140, 140), saves=5).said
    assert "which is 100 % of the time" in text
    assert "max_overhead=" not in text


def test_a_save_slower_than_the_interval_is_said_and_saves_follow_without_a_pause() -> None:
    slow = Cost(blocked=1.0, durable=200.0, busy=210.0)
    outcome = simulate(Every(max_loss="5min"), lambda _n: slow, saves=10, step=STEP)
    (text,) = outcome.said
    assert text == (
        "A loss of at most 5 min cannot be held: a save takes 3.33 min until it is durable, and the next"
        " begins only after it, so up to 6.83 min of work are at risk. Saves follow each other without a"
        ' pause. Give max_loss="7min", or a root that is written faster.'
    )
    assert outcome.pauses[3:] == [near(210)] * 6
    assert max(outcome.losses[3:]) == near(410)


def test_a_loss_that_can_be_held_after_all_leaves_room_for_the_other_warning() -> None:
    costs = [DEAR.times(10)] * 6 + [DEAR] * 12
    said = simulate(BOTH, costs.__getitem__, saves=18).said
    assert [("both" in text) for text in said] == [False, True]


def test_it_is_said_again_only_when_it_is_twice_as_bad() -> None:
    costs = [DEAR] * 8 + [DEAR.times(1.5)] * 8 + [DEAR] * 8 + [DEAR.times(2.5)] * 8
    said = simulate(BOTH, costs.__getitem__, saves=32).said
    assert [re.findall(r"works for (\d+) s", text) for text in said] == [["22"], ["55"]]


def test_nothing_is_said_of_one_slow_save_nor_before_three_are_known() -> None:
    costs = [DEAR, *[CHEAP] * 5, DEAR.times(20), *[CHEAP] * 6]
    assert simulate(BOTH, costs.__getitem__, saves=13).said == []
    assert len(simulate(BOTH, lambda _n: DEAR, saves=3).said) == 0
    assert len(simulate(BOTH, lambda _n: DEAR, saves=4).said) == 1


def due_after(schedule: Schedule, clock: Clock) -> float:
    """Return after how many steps of a second a save is due. For `max_loss`, the next would be too late."""
    start = clock.now
    while not schedule.due(0):
        clock.now += 1
    return clock.now - start


@pytest.mark.parametrize(("every", "seconds"), [(Every(max_loss=300), 269), (Every(max_overhead=0.02), 50)])
def test_a_process_that_has_measured_nothing_takes_what_is_stated(every: Every, seconds: float) -> None:
    clock = Clock()
    former = Schedule(every, clock)
    former.saved(0, blocked=50)
    former.written(durable=50, busy=50)
    clock.now = 5000.0
    assert due_after(Schedule(every, clock, step=10), clock) == seconds


def test_the_save_of_the_start_is_measured_and_the_time_counts_from_where_training_begins() -> None:
    clock = Clock()
    schedule = Schedule(Every(max_loss=300), clock)
    schedule.saved(0, blocked=1)
    schedule.written(durable=40, busy=44)
    clock.now += 500
    schedule.begin(0)
    assert due_after(schedule, clock) == 249


@pytest.mark.parametrize("every", [Every(max_loss=300), Every(max_overhead=0.1)])
def test_it_does_not_matter_whether_the_writer_or_the_training_is_first_to_tell(every: Every) -> None:
    after: list[float] = []
    for writer_first in (False, True):
        clock = Clock()
        schedule = Schedule(every, clock)
        clock.now += 270
        if writer_first:
            schedule.written(durable=0.0, busy=0.0)
            schedule.saved(0, blocked=5.0)
        else:
            schedule.saved(0, blocked=5.0)
            schedule.written(durable=0.0, busy=0.0)
        after.append(due_after(schedule, clock))
    assert after[0] == after[1]


def test_a_save_of_any_reason_puts_the_next_off_and_is_paid_for() -> None:
    clock = Clock()
    schedule = Schedule(Every(max_overhead=0.1, steps=1000), clock)
    for step in (1000, 2000):
        assert schedule.due(step) == "every 1,000 steps"
        schedule.saved(step, blocked=1)
        clock.now += 3
        schedule.written(durable=3, busy=3)
    # 4 s each at a tenth of the time: the second is paid for from when the first is, at 140 s.
    assert schedule.due(2001) == ""
    clock.now = 100 + 80 - 1
    assert schedule.due(2001) == ""
    clock.now = 100 + 80 + 1
    assert schedule.due(2001) == "saving may take 10 % of the time"

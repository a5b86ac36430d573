from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.repo.retention import Best, RetentionPlan, plan_retention
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId


def commit(
    sequence: int,
    *,
    good: bool = True,
    segment: int = 0,
    end: bool = False,
    metrics: dict[str, float] | None = None,
) -> Commit:
    return Commit(
        sequence=Sequence(sequence),
        step=Step(sequence * 100),
        segment=segment,
        epoch=Epoch(1),
        write_id=WriteId("000000000000e1"),
        directory="steps/step_000000000001-000000000000e1",
        manifest_digest=Digest("b3:" + "0" * 64),
        time=0.0,
        good=good,
        position="end" if end else "step",
        metrics=metrics or {},
    )


def kept(plan: RetentionPlan) -> list[int]:
    return [commit.sequence for commit in plan.kept]


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    sequences = draw(st.lists(st.integers(1, 60), unique=True, max_size=20))
    values = st.one_of(st.none(), st.floats())
    return [
        commit(
            sequence,
            good=draw(st.booleans()),
            segment=draw(st.integers(0, 2)),
            end=draw(st.booleans()),
            metrics={} if (value := draw(values)) is None else {"reward": value},
        )
        for sequence in sequences
    ]


sequences = st.frozensets(st.integers(1, 60).map(Sequence))
rules = st.fixed_dictionaries(
    {
        "keep_last": st.integers(1, 6),
        "best": st.one_of(st.none(), st.builds(Best, st.just("reward"), st.sampled_from(["max", "min"]))),
        "keep_first": st.booleans(),
        "damaged": sequences,
    }
)


@given(histories(), rules)
def test_properties_of_every_plan(history: list[Commit], rule: dict[str, object]) -> None:
    plan = plan_retention(history, **rule)  # type: ignore[arg-type]
    damaged, best = rule["damaged"], rule["best"]
    assert isinstance(damaged, frozenset)
    usable = sorted((c for c in history if c.sequence not in damaged), key=lambda c: -c.sequence)
    every = [d.commit.sequence for d in plan.decisions]
    assert every == sorted((c.sequence for c in history), reverse=True), "each commit once, newest first"

    names = set(kept(plan))
    assert isinstance(rule["keep_last"], int)
    assert {c.sequence for c in usable[: rule["keep_last"]]} <= names
    assert not usable or any(c in plan.kept for c in usable), "a usable one is kept if there is any"
    assert not any(c.good for c in usable) or any(c.good for c in usable if c in plan.kept)
    for segment in {c.segment for c in usable if c.position == "end"}:
        assert max(c.sequence for c in usable if c.position == "end" and c.segment == segment) in names
    if rule["keep_first"] and usable:
        assert usable[-1].sequence in names
    if isinstance(best, Best):
        values = [c.metrics["reward"] for c in usable if c.good and "reward" in c.metrics]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            top = max(finite) if best.mode == "max" else min(finite)
            assert any(c.metrics.get("reward") == top for c in plan.kept)
    for dropped in plan.dropped:
        assert dropped.sequence not in names
        assert dropped not in usable[: rule["keep_last"]]
    again = plan_retention(plan.kept, **rule)  # type: ignore[arg-type]
    assert kept(again) == kept(plan), "what is kept once is kept when asked again"


def test_the_last_good_one_stays_however_many_bad_ones_follow() -> None:
    plan = plan_retention([commit(1), commit(2), *(commit(n, good=False) for n in range(3, 9))], keep_last=2)
    assert kept(plan) == [8, 7, 2]


def test_a_damaged_newest_commit_does_not_push_out_the_only_usable_one() -> None:
    plan = plan_retention([commit(1), commit(2), commit(3)], keep_last=1, damaged=[Sequence(3)])
    assert kept(plan) == [2]


def test_the_best_is_by_metric_and_mode_and_never_a_bad_one() -> None:
    history = [
        commit(1, metrics={"reward": 5.0}),
        commit(2, metrics={"reward": math.nan}),
        commit(3, metrics={"reward": 9.0}, good=False),
        commit(4, metrics={"reward": 1.0}),
        commit(5),
    ]
    assert kept(plan_retention(history, keep_last=1, best=Best("reward"))) == [5, 1]
    assert kept(plan_retention(history, keep_last=1, best=Best("reward", "min"))) == [5, 4]


def test_of_equal_values_the_first_is_the_best_since_it_was_evaluated_then() -> None:
    history = [
        commit(n, metrics={"reward": value}) for n, value in ((1, 100.0), (2, 500.0), (3, 500.0), (4, 500.0))
    ]
    assert kept(plan_retention(history, keep_last=1, best=Best("reward"))) == [4, 2]
    assert Best("reward", "min").choose([*history, commit(5, metrics={"reward": 100.0})]) is history[0]


def test_of_equal_values_one_that_a_later_start_went_back_before_is_not_the_best() -> None:
    reached = [commit(n, metrics={"reward": 500.0}) for n in (2, 3)]
    again = [
        replace(commit(n), step=Step(step), metrics={"reward": 500.0}) for n, step in ((4, 150), (5, 250))
    ]
    assert Best("reward").choose([commit(1), *reached, *again]) is again[0]


def test_a_plan_can_be_printed() -> None:
    plan = plan_retention([commit(1), commit(2, end=True), commit(3)], keep_last=1)
    assert str(plan).splitlines() == [
        "keep       3  step 300           one of the last 1",
        "keep       2  step 200           end of segment 0",
        "drop       1  step 100",
    ]


@pytest.mark.parametrize("keep_last", [0, -1])
def test_keeping_nothing_is_refused(keep_last: int) -> None:
    with pytest.raises(ConfigError, match="At least one"):
        plan_retention([], keep_last=keep_last)


def test_a_rule_for_the_best_is_checked() -> None:
    with pytest.raises(ConfigError, match="metric"):
        Best("")
    with pytest.raises(ConfigError, match="'max' or 'min'"):
        Best("reward", "largest")  # type: ignore[arg-type]

"""The plan: which checkpoint is tried, in which order, and when the run has to stop."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.engine.recovery import (
    Evidence,
    Tier,
    Wish,
    of_segment,
    plan_recovery,
    wish_of_segment,
)
from unbroken.engine.settings import WorstTier
from unbroken.format.records import Commit, Position
from unbroken.repo.retention import Best
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId


def commit(
    sequence: int,
    step: int,
    *,
    segment: int = 0,
    good: bool = True,
    position: Position = "step",
    metrics: dict[str, float] | None = None,
) -> Commit:
    return Commit(
        sequence=Sequence(sequence),
        step=Step(step),
        segment=segment,
        epoch=Epoch(1),
        write_id=WriteId("a1"),
        directory=f"steps/step_{step:012d}-a1",
        manifest_digest=Digest("b3:" + "0" * 64),
        good=good,
        position=position,
        metrics=metrics or {},
    )


THREE = (commit(1, 0, position="start"), commit(2, 100), commit(3, 200))


def test_no_commit_means_a_fresh_start() -> None:
    plan = plan_recovery(Evidence(commits=()), Wish())
    assert plan.first is not None
    assert plan.first.tier is Tier.FRESH


def test_the_newest_is_taken_by_sequence_and_not_by_step() -> None:
    went_back = (*THREE, commit(4, 150))
    plan = plan_recovery(Evidence(commits=went_back), Wish())
    assert plan.first is not None
    assert (plan.first.tier, plan.first.commit) == (Tier.NEWEST, went_back[3])


def test_a_damaged_one_is_passed_over_and_named() -> None:
    plan = plan_recovery(Evidence(commits=THREE, damaged={Sequence(3): "one byte is wrong"}), Wish())
    assert plan.first is not None
    assert (plan.first.tier, plan.first.commit) == (Tier.OLDER, THREE[1])
    assert plan.obstacles == ("commit 3 (step 200): one byte is wrong",)


def test_weights_that_are_not_finite_are_not_taken_unasked() -> None:
    sick = (*THREE, commit(4, 300, good=False))
    plan = plan_recovery(Evidence(commits=sick), Wish())
    assert plan.first is not None
    assert plan.first.commit is THREE[2]
    asked = plan_recovery(Evidence(commits=sick), Wish(resume=300)).first
    assert asked is not None
    assert asked.commit is sick[3]


ALL_DAMAGED = {Sequence(n): f"reason {n}" for n in (1, 2, 3)}


def test_if_none_is_left_the_run_stops_with_every_reason() -> None:
    plan = plan_recovery(Evidence(commits=THREE, damaged=ALL_DAMAGED), Wish())
    assert plan.first is None
    assert [line for line in plan.obstacles if line.startswith("commit")] == [
        "commit 3 (step 200): reason 3",
        "commit 2 (step 100): reason 2",
        "commit 1 (step 0): reason 1",
    ]


def test_a_fresh_start_over_existing_commits_has_to_be_allowed() -> None:
    plan = plan_recovery(Evidence(commits=THREE, damaged=ALL_DAMAGED), Wish(worst_tier="fresh"))
    assert plan.first is not None
    assert plan.first.tier is Tier.FRESH
    assert len(plan.obstacles) == 4


def test_what_was_recorded_comes_before_a_fresh_start() -> None:
    evidence = Evidence(commits=THREE, damaged=ALL_DAMAGED, rebuild="")
    plan = plan_recovery(evidence, Wish(worst_tier="fresh"))
    assert plan.first is not None
    assert plan.first.tier is Tier.REBUILT


@pytest.mark.parametrize(("worst", "goes_on"), [("newest", False), ("older", True), ("rebuilt", True)])
def test_the_worst_tier_is_a_limit(worst: str, goes_on: bool) -> None:
    evidence = Evidence(commits=THREE, damaged={Sequence(3): "bad"})
    plan = plan_recovery(evidence, Wish(worst_tier=worst))  # type: ignore[arg-type]
    assert (plan.first is not None) is goes_on


@pytest.mark.parametrize(
    ("known", "worst", "hint"),
    [
        (
            {"damaged": {3: "bad"}},
            "newest",
            (
                'worst_tier="older" (for one start: UNBROKEN_WORST_TIER=older) goes on from step 100, 100 before the newest;'
                " a mirror may bring the newest back."
            ),
        ),
        (
            {"damaged": {1: "bad", 2: "bad", 3: "bad"}, "rebuild": ""},
            "older",
            (
                'worst_tier="rebuilt" (for one start: UNBROKEN_WORST_TIER=rebuilt) makes the environments anew from the'
                " journal."
            ),
        ),
        (
            {"damaged": {3: "bad"}, "rejected": {1: "poor", 2: "poor"}},
            "rebuilt",
            (
                "Whole and not taken: resume=100 (UNBROKEN_RESUME=100) goes on from there all the same. A warm-up"
                ' evaluation can ask less (`least`). worst_tier="fresh" (for one start: UNBROKEN_WORST_TIER=fresh)'
                " starts at the beginning."
            ),
        ),
        (
            {"damaged": {1: "bad", 2: "bad", 3: "bad"}},
            "rebuilt",
            (
                "`unbroken verify 'the runs/a'` names each file that is damaged, and a mirror brings them back. Without"
                ' one, worst_tier="fresh" (for one start: UNBROKEN_WORST_TIER=fresh) starts at the beginning, and keeps'
                " what can be read."
            ),
        ),
    ],
    ids=["older forbidden", "rebuilding forbidden", "all rejected", "all damaged"],
)
def test_where_it_stops_the_next_step_is_one_that_goes_on(
    known: dict[str, Any], worst: WorstTier, hint: str
) -> None:
    plan = plan_recovery(Evidence(commits=THREE, **known), Wish(worst_tier=worst), where="the runs/a")
    assert (plan.first, plan.hint) == (None, hint)
    if named := re.search(r'^(?:worst_tier="(\w+)"|.*resume=(\d+))', hint):
        way = Wish(worst_tier=named[1]) if named[1] else Wish(resume=int(named[2]))  # type: ignore[arg-type]
        evidence = replace(Evidence(commits=THREE, **known), rejected={})
        assert plan_recovery(evidence, way).first is not None


@given(
    damaged=st.sets(st.sampled_from([1, 2, 3])),
    worst=st.sampled_from(["newest", "older", "rebuilt", "fresh"]),
    rebuild=st.sampled_from(["", "nothing recorded"]),
)
def test_nothing_worse_than_allowed_and_nothing_damaged_is_ever_tried(
    damaged: set[int], worst: str, rebuild: str
) -> None:
    evidence = Evidence(commits=THREE, damaged={Sequence(n): "bad" for n in damaged}, rebuild=rebuild)
    plan = plan_recovery(evidence, Wish(worst_tier=worst))  # type: ignore[arg-type]
    for attempt in plan.attempts:
        if not attempt.obstacle:
            assert attempt.tier.rank <= Tier(worst).rank
            assert attempt.commit is None or attempt.commit.sequence not in damaged
    assert (plan.first is None) == all(attempt.obstacle for attempt in plan.attempts)
    if 3 not in damaged:
        assert plan.first is not None
        assert plan.first.commit is THREE[2]


def test_must_without_a_checkpoint_stops() -> None:
    plan = plan_recovery(Evidence(commits=()), Wish(resume="must"))
    assert plan.first is None
    assert "must" in plan.stop


def test_an_unreadable_commit_record_is_no_empty_run() -> None:
    plan = plan_recovery(Evidence(commits=(), unreadable=("commits/1.json: damaged",)), Wish())
    assert plan.first is None


def test_never_ignores_what_is_there() -> None:
    plan = plan_recovery(Evidence(commits=THREE), Wish(resume="never"))
    assert plan.first is not None
    assert plan.first.tier is Tier.FRESH


def test_the_best_is_chosen_by_its_metric() -> None:
    scored = tuple(commit(n, 100 * n, metrics={"r": float(r)}) for n, r in ((1, 5), (2, 9), (3, 7)))
    plan = plan_recovery(Evidence(commits=scored), Wish(resume="best", best=Best("r")))
    assert plan.first is not None
    assert plan.first.commit is scored[1]


def test_a_start_from_the_best_takes_the_first_of_equals() -> None:
    scored = tuple(commit(n, 100 * n, metrics={"r": 500.0}) for n in (1, 2, 3))
    plan = plan_recovery(Evidence(commits=scored), Wish(resume="best", best=Best("r")))
    assert plan.first is not None
    assert plan.first.commit is scored[0]


def test_a_named_step_is_not_replaced_by_another() -> None:
    assert plan_recovery(Evidence(commits=THREE), Wish(resume=150)).first is None
    found = plan_recovery(Evidence(commits=THREE), Wish(resume=100)).first
    assert found is not None
    assert found.commit is THREE[1]
    damaged = Evidence(commits=THREE, damaged={Sequence(2): "bad"})
    assert plan_recovery(damaged, Wish(resume=100, worst_tier="fresh")).first is None


def test_the_plan_prints_what_would_happen() -> None:
    text = str(plan_recovery(Evidence(commits=THREE, damaged={Sequence(3): "bad"}), Wish()))
    assert text.splitlines() == [
        "   newest   commit 3 (step 200): no, bad",
        "-> older    commit 2 (step 100)",
        "   older    commit 1 (step 0)",
        "   rebuilt  rebuild from recorded rollouts: no, no rollouts were recorded",
        "   fresh    start from the beginning: no, worst_tier='rebuilt' forbids it",
    ]


def test_a_later_segment_counts_only_after_the_end_of_the_one_before() -> None:
    done = (
        commit(1, 0),
        commit(2, 100, position="end"),
        commit(3, 100, segment=1),
        commit(4, 150, segment=1),
    )
    assert [c.sequence for c in of_segment(done, 1)] == [3, 4]
    trained_again = (*done, commit(5, 50), commit(6, 100, position="end"))
    assert of_segment(trained_again, 1) == ()
    assert [c.sequence for c in of_segment(trained_again, 0)] == [1, 2, 5, 6]


def test_a_named_step_concerns_the_segment_that_holds_it() -> None:
    done = (commit(1, 100, position="end"), commit(2, 150, segment=1))
    assert wish_of_segment(Wish(resume=150), done, 0).resume == "auto"
    assert wish_of_segment(Wish(resume=150), done, 1).resume == 150
    assert wish_of_segment(Wish(resume=999), done, 0).resume == 999
    assert wish_of_segment(Wish(resume="must"), done[:1], 1).resume == "auto"
    assert wish_of_segment(Wish(resume="must"), (), 0).resume == "must"

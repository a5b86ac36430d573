from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.repo.test_retention import commit, kept
from unbroken.format.records import Commit
from unbroken.repo.pressure import STAYS, Relief, Shortage, plan_relief
from unbroken.repo.retention import Best, RetentionPlan, plan_retention
from unbroken.types import Sequence

FIVE = [commit(number) for number in (1, 2, 3, 4, 5)]


def ten_each(plan: RetentionPlan) -> int:
    return 10 * len(plan.dropped)


def relief(
    commits: Iterable[Commit],
    *,
    missing: int,
    keep_last: int = 5,
    best: Best | None = None,
    damaged: Collection[Sequence] = (),
    held: Mapping[Sequence, str] | None = None,
) -> Relief:
    return plan_relief(
        commits,
        missing=missing,
        freed=ten_each,
        keep_last=keep_last,
        best=best,
        damaged=damaged,
        held=held or {},
    )


@pytest.mark.parametrize(
    ("missing", "stays"),
    [(1, [5, 4, 3, 2]), (10, [5, 4, 3, 2]), (11, [5, 4, 3]), (40, [5]), (41, [5, 4, 3, 2, 1])],
)
def test_the_oldest_go_as_few_as_are_enough_and_none_in_vain(missing: int, stays: list[int]) -> None:
    found = relief(FIVE, missing=missing)
    assert kept(found.plan) == stays
    assert found.is_enough is bool(found.plan.dropped)


def test_what_the_settings_do_not_keep_goes_first_and_wholly() -> None:
    assert kept(relief(FIVE, missing=1, keep_last=2).plan) == [5, 4]
    assert kept(relief(FIVE, missing=31, keep_last=2).plan) == [5]


def test_what_could_have_been_freed_is_said_where_nothing_goes() -> None:
    found = relief(FIVE, missing=100)
    assert (found.missing, found.freed, found.plan.dropped) == (100, 40, ())


def test_the_best_an_end_what_is_held_and_the_newest_stay_whatever_is_missing() -> None:
    commits = [
        commit(1, metrics={"reward": 9.0}), commit(2), commit(3, end=True), commit(4), commit(5),
        commit(6, good=False),
    ]  # fmt: skip
    found = relief(commits, missing=20, best=Best("reward"), held={Sequence(2): "somebody reads it"})
    assert found.plan.dropped == (), "only one may go, which gives ten"
    found = relief(commits, missing=10, best=Best("reward"), held={Sequence(2): "somebody reads it"})
    assert kept(found.plan) == [6, 5, 3, 2, 1], "the newest, the newest good one, the end, the held, the best"


def test_one_that_does_not_load_goes_and_does_not_count_as_the_newest() -> None:
    assert kept(relief(FIVE, missing=40, damaged={Sequence(5)}).plan) == [4]
    assert kept(relief(FIVE, missing=1, damaged={Sequence(5)}).plan) == [4, 3, 2, 1]


def test_the_plan_says_why_the_others_stay() -> None:
    assert reasons(relief(FIVE, missing=1, keep_last=5).plan) == [("one of the last 5",)] * 4 + [()]
    in_vain = relief([*FIVE, commit(6)], missing=1000, keep_last=5)
    assert reasons(in_vain.plan) == [("one of the last 5",)] * 5 + [(STAYS,)]


def reasons(plan: RetentionPlan) -> list[tuple[str, ...]]:
    return [one.reasons for one in plan.decisions]


@given(
    good=st.lists(st.booleans(), min_size=1, max_size=9),
    keep_last=st.integers(1, 9),
    missing=st.integers(1, 100),
    held=st.sets(st.integers(1, 9)),
    damaged=st.sets(st.integers(1, 9)),
)
def test_properties_of_every_plan(
    good: list[bool], keep_last: int, missing: int, held: set[int], damaged: set[int]
) -> None:
    commits = [commit(number + 1, good=one) for number, one in enumerate(good)]
    pinned = {Sequence(number): "held" for number in held}
    found = relief(
        commits, missing=missing, keep_last=keep_last, held=pinned, damaged={Sequence(n) for n in damaged}
    )
    stays, goes = set(kept(found.plan)), {commit.sequence for commit in found.plan.dropped}
    assert stays | goes == {commit.sequence for commit in commits}
    assert not held & goes
    usable = [one for one in commits if one.sequence not in damaged]
    if usable:
        assert usable[-1].sequence in stays
    if any(one.good for one in usable):
        assert any(one.good and one.sequence in stays for one in usable)
    if goes:
        assert found.freed >= missing
        wanted = plan_retention(
            commits, keep_last=keep_last, damaged={Sequence(n) for n in damaged}, pinned=pinned
        )
        more = sorted(goes - {one.sequence for one in wanted.dropped})
        if more:
            assert 10 * (len(goes) - 1) < missing, "one fewer would not have been enough"
            left = [
                one.sequence for one in wanted.kept if one.sequence not in goes and one.sequence < more[-1]
            ]
            least = plan_retention(
                commits, keep_last=1, damaged={Sequence(n) for n in damaged}, pinned=pinned
            )
            assert set(left) <= {one.sequence for one in least.kept}, (
                "no older one that may go was passed over"
            )


@pytest.mark.parametrize(
    ("free", "is_quota", "missing", "told"),
    [
        (0, False, 1_000, "The checkpoint takes 1,000 bytes and 0 are free"),
        (999, False, 1, "The checkpoint takes 1,000 bytes and 999 are free"),
        (1_000, True, 1_000, "The checkpoint takes 1,000 bytes"),
        (5_000, True, 1_000, "The checkpoint takes 1,000 bytes"),
        (None, True, 1_000, "The checkpoint takes 1,000 bytes"),
    ],
)
def test_it_is_a_quota_where_there_is_room_enough_or_nobody_can_tell(
    free: int | None, is_quota: bool, missing: int, told: str
) -> None:
    short = Shortage(1_000, free)
    assert (short.is_quota, short.missing, str(short)) == (is_quota, missing, told)

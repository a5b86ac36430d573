"""Which records stay, and that a record has a bounded size whatever a training tells."""

from __future__ import annotations

import itertools

import pytest

from unbroken.format import saves, wire
from unbroken.format.meta import ComponentCost, ComponentFidelity, Meta
from unbroken.format.records import Commit
from unbroken.format.saves import SaveRecord
from unbroken.types import Epoch, Fidelity, Sequence, Step, WriteId


def commit(metrics: dict[str, float] | None = None) -> Commit:
    return Commit(
        sequence=Sequence(3),
        step=Step(30),
        epoch=Epoch(2),
        write_id=WriteId("a"),
        directory="steps/step_000000000030-a",
        manifest_digest="b3:" + "0" * 64,  # type: ignore[arg-type]
        metrics=metrics or {},
    )


def test_everything_stays_up_to_the_limit() -> None:
    assert saves.kept(range(1, 21), most=20, newest=10) == frozenset(range(20))


def test_the_newest_stay_and_the_others_are_chosen_by_their_number() -> None:
    stays = saves.kept(range(1, 41), most=20, newest=10)
    assert sorted(place + 1 for place in stays) == [8, 16, 24, *range(31, 41)]


def test_thinned_again_and_again_what_stays_is_even() -> None:
    numbers: list[int] = []
    for number in range(1, 5001):
        numbers.append(number)
        stays = saves.kept(numbers, most=20, newest=10)
        numbers = [one for place, one in enumerate(numbers) if place in stays]
    older = numbers[:-20]
    gaps = {later - earlier for earlier, later in itertools.pairwise(older)}
    assert len(numbers) <= 20
    assert gaps <= {1024}


def test_records_of_another_run_are_chosen_by_their_place() -> None:
    stays = saves.kept([0] * 40, most=20, newest=10)
    assert sorted(stays) == [0, 8, 16, 24, *range(30, 40)]


def test_a_record_is_bounded_whatever_is_told() -> None:
    metrics = {f"metric {number}": 1.0 for number in range(10 * saves.MOST_METRICS)}
    metrics["x" * (saves.LONGEST_NAME + 1)] = 1.0
    meta = Meta(step=Step(30), reason="r" * 10_000)
    record = saves.of_checkpoint(commit(metrics), meta)
    assert len(record.metrics) == saves.MOST_METRICS
    assert len(record.reason) == saves.LONGEST_REASON
    longest = saves.of_checkpoint(commit({f"{n:0>128}": -1e-300 / 3 for n in range(99)}), meta)
    assert len(wire.encode_line(longest)) < 16_384


def test_a_record_says_what_lies_beside_the_checkpoint() -> None:
    meta = Meta(
        step=Step(30),
        reason="10 steps",
        episodes=4,
        seconds_blocked=0.25,
        bytes=1000,
        fidelity={
            "a": ComponentFidelity(Fidelity.EXACT),
            "b": ComponentFidelity(Fidelity.APPROXIMATE, "why"),
            "c": ComponentFidelity(Fidelity.NOT_CAPTURED, "why"),
        },
        cost={"a": ComponentCost(written=70), "b": ComponentCost(written=30)},
    )
    record = saves.of_checkpoint(commit({"reward": 2.0}), meta, durable=1.5)
    assert record == SaveRecord(
        sequence=3, step=Step(30), epoch=Epoch(2), metrics={"reward": 2.0}, reason="10 steps", episodes=4,
        blocked=0.25, durable=1.5, bytes=1000, written=100, inexact=2,
    )  # fmt: skip


def test_what_nobody_counted_is_unknown() -> None:
    meta = Meta(step=Step(30), cost={"a": ComponentCost(written=70), "b": ComponentCost()})
    assert saves.of_checkpoint(commit(), meta).written is None
    assert saves.of_checkpoint(commit(), None).blocked is None


@pytest.mark.parametrize("key", ["saves/7.jsonl", "saves/0000000007.json", "saves/x/0000000007.jsonl"])
def test_other_keys_are_no_records(key: str) -> None:
    assert saves.saves_epoch(key) is None
    assert saves.saves_epoch(saves.saves(Epoch(7))) == 7

from __future__ import annotations

import msgspec
import pytest

from benchmarks.records import (
    QUICK,
    Calls,
    GymRow,
    GymSave,
    GymSeries,
    GymServerRow,
    Limits,
    Load,
    Machine,
    RestoreRow,
    Results,
    Row,
    Save,
    SaveRow,
    StoreRow,
    TrainingRow,
)
from benchmarks.targets import OURS, Verdict, judge

LIMITS = Limits(copy=0.010, copy_two=0.005, buffered=0.1, direct=0.2)
SAVE = Save(blocked=0.015, durable=0.12, written=1_000, on_top=1 << 20, limits=LIMITS)


def row(workload: str, *saves: Save, contender: str = OURS) -> SaveRow:
    return SaveRow(
        workload=workload,
        contender=contender,
        back_to_back=list(saves),
        after_idle=list(saves),
        changed=2_000,
        compressed=1_000,
        verified=True,
    )


def verdicts(*rows: Row) -> dict[str, Verdict]:
    machine = Machine(cpu="x", cores=2, memory=1, kernel="6", file_system="ext4", versions={})
    results = Results(
        command="c",
        date="d",
        seconds=1,
        load_before=0,
        load_after=0,
        quick=False,
        sizes=QUICK,
        machine=machine,
        rows=list(rows),
    )
    return {verdict.what: verdict for verdict in judge(results)}


def test_without_rows_nothing_was_measured() -> None:
    assert {verdict.reached for verdict in verdicts().values()} == {None}


def test_the_same_targets_stand_whatever_was_measured() -> None:
    measured = verdicts(row("a", SAVE), row("a-grown", SAVE), row("c", SAVE))
    assert [*verdicts()] == [*measured]


def test_ratios_are_taken_pair_by_pair() -> None:
    slow = msgspec.structs.replace(SAVE, blocked=0.15, limits=msgspec.structs.replace(LIMITS, copy=0.1))
    found = verdicts(row("a", SAVE, SAVE, slow))["(a) blocked, by the copy of what changed"]
    assert found.measured.startswith("1.50 ×")
    assert found.reached is True


def test_too_much_is_said_to_be_too_much() -> None:
    worse = msgspec.structs.replace(SAVE, durable=0.2, written=1_100, on_top=100 << 20)
    found = verdicts(row("a", worse))
    assert found["(a) until durable, by its durable write"].reached is False
    assert found["(a) bytes written, by the compressed size of what changed"].reached is False
    assert found["(a) memory on top of training"].reached is False


def test_growth_compares_the_two_buffers() -> None:
    grown = msgspec.structs.replace(SAVE, blocked=0.016, durable=0.24)
    found = verdicts(row("a", SAVE), row("a-grown", grown))
    assert found["growth of the buffer: blocked time"].reached is True
    assert found["growth of the buffer: durable time"].reached is False


@pytest.mark.parametrize(("peer", "reached"), [(0.115, True), (0.1, False)])
def test_back_to_back_one_is_level_within_the_spread(peer: float, *, reached: bool) -> None:
    other = row("c", msgspec.structs.replace(SAVE, durable=peer, limits=None), contender="peer")
    found = verdicts(row("c", SAVE), other)
    assert found["(c) full save until durable, by the best peer, back to back"].reached is reached
    assert found["(c) full save until durable, by the best peer, after idleness"].reached is False


def test_the_first_save_is_held_against_the_limits_of_those_after_it() -> None:
    first = msgspec.structs.replace(row("c", SAVE), first=msgspec.structs.replace(SAVE, durable=0.25))
    assert verdicts(first)["(d) first full save of (c) until durable, by O_DIRECT"].measured == "1.25 ×"


def test_a_file_system_without_o_direct_gives_no_verdict() -> None:
    save = msgspec.structs.replace(SAVE, limits=msgspec.structs.replace(LIMITS, direct=None))
    found = verdicts(row("c", save))
    assert found["(c) full save until durable, by O_DIRECT, back to back"].reached is None


def test_a_row_that_is_not_verified_reaches_nothing() -> None:
    wrong = msgspec.structs.replace(row("a", SAVE), verified=False)
    assert verdicts(wrong)["(a) blocked, by the copy of what changed"].reached is None


def test_restores_are_held_against_the_read_and_the_best_peer() -> None:
    ours = RestoreRow(
        workload="a",
        contender=OURS,
        warm=[Load(seconds=0.1, fresh=0.05)],
        cold=[Load(seconds=0.6, fresh=0.5)],
        verified=True,
    )
    peer = RestoreRow(workload="a", contender="peer", warm=[Load(seconds=0.15)], verified=True)
    found = verdicts(ours, peer)
    assert found["(a) restore, cold, by the cold read into fresh memory"].reached is True
    assert found["(a) restore, warm, by the best peer"].reached is False


def test_slowdown_is_in_percent_of_the_training() -> None:
    found = verdicts(TrainingRow(steps=10, plain=[10.0], saving=[10.1], saves=[2], verified=True))
    assert found["DQN slowed down by saving"].measured == "1.00 %; 2 saves in 1 trainings"
    assert found["DQN slowed down by saving"].reached is True


def test_what_counts_of_a_store_is_its_size_after_pruning() -> None:
    found = verdicts(StoreRow(saves=3, size=200, pruned=105, live=100, verified=True))
    assert found["store of a growing run, by its live data"].measured == "1.05 ×"


def test_a_save_of_few_sessions_is_held_against_that_of_all_series_by_series() -> None:
    def series(full: float, few: float) -> GymSeries:
        return GymSeries(
            full=GymSave(paused=full, blocked=full, durable=full, written=1000),
            later=[GymSave(paused=few, blocked=few, durable=few, written=60)],
        )

    server = GymServerRow(
        name="counter",
        sessions=QUICK.counters,
        changed=QUICK.changed_counters,
        series=[series(1.0, 0.04), series(2.0, 0.06), series(1.0, 0.2)],
        from_log=1.0,
        from_checkpoint=1.0,
        verified=True,
    )
    calls = Calls(connections=1, rest=0.0, plain=[0.001, 0.002, 0.001], logged=[0.002, 0.005, 0.006])
    found = verdicts(GymRow(servers=[server], calls=[calls], verified=True))
    few = f"{QUICK.changed_counters} of {QUICK.counters} sessions (counter) changed"
    pause = found[f"{few}: pause, by that of a full save"]
    assert (pause.measured, pause.reached) == ("4.00 % (3.00 to 20.00)", True)
    assert found[f"{few}: bytes, by that of a full save"].reached is False
    call = found["a call with the log, over plain, 1 connection"]
    assert (call.measured, call.reached) == ("3.00 ms (1.00 to 5.00)", True)
    assert found["a call with the log, over plain, 16 connections"].reached is None

from __future__ import annotations

import msgspec

from benchmarks.merging import merge
from benchmarks.records import FULL, GymRow, Machine, Results, Row, SaveRow, StoreRow


def results(*rows: Row, commit: str) -> Results:
    machine = Machine(cpu="x", cores=2, memory=1, kernel="6", file_system="ext4", versions={})
    return Results(
        command=f"command of {commit}",
        date="d",
        seconds=1,
        load_before=0,
        load_after=0,
        quick=False,
        sizes=FULL,
        machine=machine,
        rows=list(rows),
        commit=commit,
    )


OLD = results(
    SaveRow(workload="a", contender="x", state=1),
    SaveRow(workload="c", contender="x", state=1),
    StoreRow(saves=1),
    commit="old",
)


def test_rows_take_the_place_of_their_former_ones_and_no_others() -> None:
    fresh = results(SaveRow(workload="a", contender="x", state=2), GymRow(verified=True), commit="new")
    found = merge(msgspec.json.encode(OLD), fresh, parts=["a", "gym"])
    assert [row for row in found.rows if isinstance(row, SaveRow)] == [
        SaveRow(workload="c", contender="x", state=1),
        SaveRow(workload="a", contender="x", state=2),
    ]
    assert StoreRow(saves=1) in found.rows
    assert GymRow(verified=True) in found.rows
    assert found.commit == "old"
    assert [(one.parts, one.commit) for one in found.later] == [(["a", "gym"], "new")]


def test_a_part_that_is_measured_again_is_told_once() -> None:
    found = OLD
    for commit in ("new", "newer"):
        found = merge(msgspec.json.encode(found), results(GymRow(), commit=commit), parts=["gym"])
    assert [one.commit for one in found.later] == ["newer"]


def test_results_of_before_a_part_there_was_lack_its_sizes() -> None:
    document = msgspec.to_builtins(OLD)
    del document["sizes"]["counters"]
    document["sizes"]["saves"] = 99
    found = merge(msgspec.json.encode(document), results(GymRow(), commit="new"), parts=["gym"])
    assert (found.sizes.counters, found.sizes.saves) == (FULL.counters, 99)

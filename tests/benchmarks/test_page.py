from __future__ import annotations

import msgspec
import pytest

from benchmarks.page import render
from benchmarks.records import (
    FULL,
    Calls,
    GymRow,
    GymSave,
    GymSeries,
    GymServerRow,
    Later,
    Load,
    Machine,
    RestoreRow,
    Results,
    Save,
    SaveRow,
    StoreRow,
    TrainingRow,
)  # fmt: skip

GYM_SAVE = GymSave(paused=0.25, blocked=0.5, durable=1.0, written=12_345)
GYM = GymRow(
    calls=[Calls(connections=16, rest=0.05, plain=[0.001], logged=[0.0025])],
    servers=[
        GymServerRow(
            name="counter",
            sessions=10_000,
            changed=100,
            series=[GymSeries(full=GYM_SAVE, later=[GYM_SAVE])],
            from_log=1.5,
            from_checkpoint=2.5,
            verified=True,
        )
    ],
    versions={"nemo-gym": "0.4.0"},
    verified=True,
)
SAVE = Save(blocked=0.25, durable=0.5, written=1_000_000, on_top=0)
RESULTS = Results(
    command="python -m benchmarks",
    date="2026-01-01 00:00 UTC",
    seconds=60,
    load_before=0.1,
    load_after=1.1,
    quick=False,
    sizes=FULL,
    machine=Machine(
        cpu="CPU", cores=2, memory=2**34, kernel="6.1", file_system="ext4", versions={"torch": "2.13.0"}
    ),
    rows=[
        SaveRow(workload="a", contender="good", first=SAVE, back_to_back=[SAVE], verified=True),
        SaveRow(workload="a", contender="wrong", first=SAVE, back_to_back=[SAVE]),
        SaveRow(workload="a", contender="broken", failure="OSError: no space | left\nhere"),
        SaveRow(workload="c", contender="broken", failure="killed"),
        RestoreRow(workload="a", contender="wrong", warm=[Load(seconds=1)], cold=[Load(seconds=2)]),
        RestoreRow(workload="a", contender="broken", failure="killed"),
        TrainingRow(failure="no ROM"),
        StoreRow(failure="no disk"),
        GYM,
    ],
)


def line(text: str, section: str, name: str) -> str:
    after = text.partition(section)[2]
    return next(found for found in after.splitlines() if found.startswith(f"| {name} "))


def test_what_did_not_come_back_is_shown() -> None:
    text = render(RESULTS)
    frames = "frames: saves"
    assert line(text, frames, "good").endswith("| equal |")
    assert line(text, frames, "wrong").endswith("| **not equal** |")
    assert line(text, "frames: restore", "wrong").endswith("| **not equal** |")


def test_what_failed_is_shown_with_the_reason_in_one_line() -> None:
    text = render(RESULTS)
    assert line(text, "frames: saves", "broken").endswith("| **failed**: OSError: no space / left here |")
    assert line(text, "no buffer: saves", "broken").endswith("| **failed**: killed |")
    assert line(text, "frames: restore", "broken").endswith("| **failed**: killed |")
    assert "**Failed**: no ROM" in text
    assert "**Failed**: no disk" in text


def test_every_table_has_rows_of_one_width() -> None:
    for block in render(RESULTS).split("\n\n"):
        rows = [row for row in block.splitlines() if row.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, block


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"load_before": 1.5}, "**Preliminary**"),
        ({"load_after": 4.0}, "**Preliminary**"),
        ({"quick": True}, "**No result**"),
    ],
)
def test_a_run_whose_timings_mean_little_says_so(change: dict[str, object], said: str) -> None:
    text = render(msgspec.structs.replace(RESULTS, **change))
    assert [word for word in ("**Preliminary**", "**No result**") if word in text] == ([said] if said else [])


def test_machine_command_load_and_versions_are_told() -> None:
    text = render(RESULTS)
    for fact in (
        "`python -m benchmarks`",
        "2 cores of CPU",
        "16 GiB",
        "Linux 6.1",
        "ext4",
        "0.10",
        "torch 2.13.0",
    ):
        assert fact in text


def test_sessions_of_nemo_gym_have_their_saves_restores_and_calls() -> None:
    text = render(RESULTS)
    section = "## Sessions of NeMo Gym"
    assert line(text, section, "counter: 100 changed").endswith("| 0.250 | 0.500 | 1.000 | 0.012 MB |")
    assert line(text, section, "counter: 10,000").endswith("| 1.50 | 2.50 | equal |")
    assert "| 1.50 (1.50 to 1.50) |" in line(text, section, "16, rest 50 ms")
    assert "nemo-gym 0.4.0" in text
    assert "**Failed**: no server" in render(
        msgspec.structs.replace(RESULTS, rows=[GymRow(failure="no server")])
    )


def test_what_was_measured_later_is_told_with_its_commit() -> None:
    later = Later(
        parts=["gym"],
        command="python -m benchmarks --only gym",
        date="2026-02-02",
        commit="abc1234",
        seconds=9,
        load_before=0,
        load_after=1,
    )
    text = render(msgspec.structs.replace(RESULTS, later=[later], commit="fed4321"))
    assert "`python -m benchmarks` at commit fed4321, 2026-01-01" in text
    assert "* Measured later: gym, by `python -m benchmarks --only gym` at commit abc1234, 2026-02-02" in text
    assert "Preliminary" not in text
    loud = msgspec.structs.replace(later, load_before=5.0)
    assert "5.00 before and 1.00 after. **Preliminary**" in render(
        msgspec.structs.replace(RESULTS, later=[loud])
    )

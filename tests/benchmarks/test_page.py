from __future__ import annotations

import msgspec
import pytest

from benchmarks.page import render
from benchmarks.records import FULL, Load, Machine, RestoreRow, Results, Save, SaveRow, StoreRow, TrainingRow

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

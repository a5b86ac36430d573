from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.plan import CONTENDERS, PARTS, jobs
from benchmarks.records import RestoreJob, SaveJob, StoreJob, TrainingJob
from benchmarks.workloads import ATARI, GROWN, MODEL


def test_a_part_is_measured_alone() -> None:
    assert jobs(["sb3"]) == [TrainingJob()]
    assert jobs(["growth"]) == [StoreJob()]
    assert {job.workload for job in jobs(["a"]) if isinstance(job, SaveJob)} == {ATARI, GROWN}


def test_contenders_of_the_buffer_alone_do_not_save_the_model() -> None:
    names = [job.contender for job in jobs(["c"]) if isinstance(job, SaveJob)]
    assert names == [name for name, kind in CONTENDERS.items() if not kind.needs_buffer]


def test_only_those_who_are_asked_for_take_part() -> None:
    assert jobs(["c", "e"], ["Unbroken"]) == [
        SaveJob(MODEL, "Unbroken"),
        RestoreJob(ATARI, "Unbroken"),
        RestoreJob(MODEL, "Unbroken"),
    ]


@pytest.mark.parametrize("option", [["--only", "a,z"], ["--contenders", "Unbroken,z"]])
def test_a_name_that_nobody_has_is_an_error_that_lists_those_there_are(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(option)
    assert ended.value.code == 2
    known = PARTS if option[0] == "--only" else CONTENDERS
    assert f"nothing is called 'z'; there are {', '.join(known)}" in capsys.readouterr().err

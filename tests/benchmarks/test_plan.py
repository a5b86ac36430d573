from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import _groups, _measurable, main
from benchmarks.plan import CONTENDERS, PARTS, jobs
from benchmarks.records import GymJob, RestoreJob, SaveJob, StoreJob, TrainingJob
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


def test_what_needs_another_python_has_a_process_of_its_own() -> None:
    wanted = jobs(["growth", "gym", "ranks"])
    first, second = _groups(wanted, quick=True)
    assert second == [GymJob()]
    assert len(first) == 2
    assert _groups([GymJob()], quick=True) == [[GymJob()]]


def test_a_part_whose_python_is_missing_is_an_error_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "python"
    with pytest.raises(SystemExit) as ended:
        main(["--only", "gym", "--gym-python", str(missing)])
    assert ended.value.code == 2
    assert f"{missing} is not there" in capsys.readouterr().err


def test_quick_figures_do_not_go_into_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "ranks", "--quick", "--merge"])
    assert ended.value.code == 2
    assert "leave out --merge" in capsys.readouterr().err


def test_a_part_whose_python_is_missing_is_left_out_by_name(tmp_path: Path) -> None:
    python = tmp_path / "python"
    assert _measurable(["a"], gym_python=python) == (["a"], "")
    parts, missing = _measurable([*PARTS], gym_python=python)
    assert parts == [part for part in PARTS if part != "gym"]
    assert missing.startswith(f"{python} is not there, which the part gym runs in")
    python.touch()
    assert _measurable([*PARTS], gym_python=python) == ([*PARTS], "")

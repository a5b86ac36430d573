"""K2 to K5: real signals to real trainings, while they train, save, restore, end, and while they hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from unbroken.repo.repository import Repository

HERE = Path(__file__).parents[2]
PREEMPTED = 75


class Job:
    """One run, started again and again by the same command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "runs"
        self.out = folder / "out.json"
        self.said = ""

    def begin(self, **order: Any) -> subprocess.Popen[str]:
        told = {"root": str(self.root), "out": str(self.out), **order}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.faults.signalled", json.dumps(told)],
            cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, **order: Any) -> int:
        """Start it, and return the exit status: minus the signal that has ended it, if one has."""
        return self.end(self.begin(**order))

    def end(self, process: subprocess.Popen[str]) -> int:
        try:
            _, self.said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.returncode

    def passed(self, share: float) -> bool:
        """Whether so many graces had passed when the last process ended."""
        return Path(f"{self.out}.{share}").exists()

    @property
    def repository(self) -> Repository:
        return Repository.open(self.root, "run")

    @property
    def steps(self) -> list[int]:
        return sorted(commit.step for commit in self.repository.commits())

    @property
    def told(self) -> list[str]:
        """Why the last process has ended."""
        last = self.repository.history()[-1]
        assert last.event == "end"
        return list(last.reasons)

    @property
    def result(self) -> str:
        values: str = json.loads(self.out.read_text())["values"]
        return values


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    job = Job(tmp_path_factory.mktemp("U"))
    assert job.start() == 0, job.said
    return job.result


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGUSR1", marks=pytest.mark.exactness), "SIGINT"])
def test_a_signal_in_a_step_saves_the_step_and_the_next_start_ends_as_if_there_had_been_none(
    name: str, job: Job, undisturbed: str
) -> None:
    status = -signal.SIGINT if name == "SIGINT" else PREEMPTED
    assert job.start(place="step", at=16, signal=name) == status, job.said
    assert f"{name}: step 17 is saved" in job.said
    assert max(job.steps) == 17
    assert job.told == [f"{'interrupted' if name == 'SIGINT' else 'preempted'} by {name}"]
    assert job.repository.pending() is None
    assert job.start() == 0, job.said
    assert "goes on at step 17" in job.said
    assert job.result == undisturbed


def test_a_start_that_is_left_cold_after_a_signal_does_not_end_so(job: Job, undisturbed: str) -> None:
    assert job.start(place="step", at=16) == PREEMPTED, job.said
    assert job.start(cold=True) == 0, job.said
    assert job.result != undisturbed


def test_a_storm_of_signals_until_the_process_has_ended_makes_one_checkpoint(
    job: Job, undisturbed: str
) -> None:
    process = job.begin(place="storm", at=16, count=10)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    while process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.005)
    assert job.end(process) == PREEMPTED, job.said
    assert len(Path(f"{job.out}.came").read_bytes()) > 10, "more came while it saved and ended"
    assert job.steps.count(17) == 1
    assert [step for step in job.steps if step > 14] == [17]
    assert job.start() == 0, job.said
    assert job.result == undisturbed


def test_ten_signals_inside_a_save_make_one_checkpoint_more(job: Job, undisturbed: str) -> None:
    assert job.start(place="save", at=14, count=10) == PREEMPTED, job.said
    assert [step for step in job.steps if step > 7] == [14, 15]
    assert job.start() == 0, job.said
    assert job.result == undisturbed


def test_ten_signals_inside_a_restore_end_it_at_once_and_damage_nothing(job: Job, undisturbed: str) -> None:
    assert job.start(place="step", at=16) == PREEMPTED, job.said
    before = job.steps
    assert job.start(place="restore", count=10) == PREEMPTED, job.said
    assert job.steps == before
    assert job.start() == 0, job.said
    assert "goes on at step 17" in job.said
    assert job.result == undisturbed


def test_ten_signals_inside_the_last_save_leave_an_end_that_needs_no_more(job: Job, undisturbed: str) -> None:
    assert job.start(place="save", at=30, count=10) == PREEMPTED, job.said
    assert job.repository.commits()[0].position == "end"
    assert not job.out.exists(), "what follows the training in the script is left to the next start"
    before = job.steps
    assert job.start() == 0, job.said
    assert job.steps == before
    assert job.result == undisturbed


def test_workers_that_were_forked_do_as_ever_and_only_the_trainer_saves(job: Job, undisturbed: str) -> None:
    """K5: the whole group is told."""
    assert job.start(place="group", at=16) == PREEMPTED, job.said
    assert json.loads(job.out.with_suffix(".workers").read_text()) == [-signal.SIGTERM] * 2
    assert [step for step in job.steps if step > 14] == [17]
    assert job.start() == 0, job.said
    assert job.result == undisturbed


@pytest.mark.parametrize("place", ["stuck", pytest.param("in C", marks=pytest.mark.exactness)])
def test_where_no_clean_point_comes_the_grace_ends_it_with_what_was_committed(
    place: str, job: Job, undisturbed: str
) -> None:
    assert job.start(place=place, at=16, settings={"grace": 0.5}) == PREEMPTED, job.said
    assert "there was no clean point since" in job.said
    assert not job.passed(10), "the grace bounds it"
    assert job.passed(0.5) or place == "in C", "and is given"
    assert max(job.steps) == 14
    assert job.start() == 0, job.said
    assert job.result == undisturbed


@pytest.mark.parametrize(
    ("place", "name", "count", "grace"),
    [
        pytest.param("closing", "SIGTERM", 1, 1, marks=pytest.mark.exactness),
        ("closing", "SIGINT", 2, 1000),
        ("last save", "SIGTERM", 1, 1),
    ],
    ids=["closing", "closing and asked twice", "the last save"],
)
def test_a_disk_that_does_not_answer_keeps_no_process_from_ending(
    place: str, name: str, count: int, grace: int, job: Job, undisturbed: str
) -> None:
    status = PREEMPTED if name == "SIGTERM" else 128 + signal.SIGINT
    order: dict[str, Any] = {"signal": name, "count": count, "settings": {"grace": grace}}
    assert job.start(place=place, at=16, **order) == status, job.said
    assert "ends with the checkpoints that there are" in job.said
    assert not job.passed(10), "the grace bounds it"
    assert max(job.steps) == 14
    assert job.start() == 0, job.said
    assert job.result == undisturbed


def test_a_second_ctrl_c_ends_at_once(job: Job, undisturbed: str) -> None:
    assert job.start(place="stuck", at=16, signal="SIGINT", count=2) == -signal.SIGINT, job.said
    assert "once more ends at once" in job.said
    assert max(job.steps) == 14
    assert job.told == ["interrupted by SIGINT"]
    assert job.start() == 0, job.said
    assert job.result == undisturbed


def test_an_error_that_comes_of_the_signal_still_ends_as_one_who_was_told(job: Job, undisturbed: str) -> None:
    """Workers that have died of the same signal take the training with them: the requeue must not stop for it."""
    assert job.start(place="error", at=16) == PREEMPTED, job.said
    assert "the training ended by EOFError: the worker is gone" in job.said
    assert max(job.steps) == 14
    assert job.start() == 0, job.said
    assert job.result == undisturbed


def test_a_handler_of_the_script_stays_the_script_s(job: Job, undisturbed: str) -> None:
    order: dict[str, Any] = {"settings": {"signals": ["SIGTERM", "SIGUSR2"]}}
    assert job.start(place="own handler", at=16, **order) == 0, job.said
    assert json.loads(job.out.read_text())["heard"] == [signal.SIGTERM]
    assert "Current thread" in job.said, "faulthandler has its own, in C"
    assert job.steps == [0, 7, 14, 21, 28, 30]
    assert job.result == undisturbed


def test_without_signals_the_default_action_is_what_it_was(job: Job) -> None:
    assert job.start(place="step", at=16, settings={"signals": []}) == -signal.SIGTERM, job.said
    assert max(job.steps) == 14


def test_the_exit_status_is_the_one_that_was_set(job: Job) -> None:
    assert job.start(place="step", at=16, settings={"exit_code": 42}) == 42, job.said

"""Hand-written loops in which something fails: nothing is left out, and nothing looks finished that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import RunBusy, SaveFailed
from unbroken.repo.repository import Repository

from .walk import Walk, no_saves, written


def test_an_error_in_the_loop_leaves_the_run_free(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")

    def train() -> None:
        with walk.run:
            for step in walk.run.steps(20):
                if step == 7:
                    raise KeyError

    with pytest.raises(KeyError):
        train()
    again = Walk(tmp_path / "run")
    again.go(20)
    assert again.run.report is not None
    assert again.run.report.step == 5


def test_a_save_that_fails_at_the_end_of_the_loop_is_raised(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    steps = walk.run.steps(3)
    assert [next(steps) for _ in range(3)] == [0, 1, 2]
    with no_saves(tmp_path / "run"):
        for _ in range(2):
            with pytest.raises(SaveFailed):
                next(steps)
        with pytest.raises(SaveFailed):
            walk.run.close()
    repository = Repository.open(tmp_path / "run", "run")
    assert [(c.step, c.position) for c in repository.commits()] == [(0, "start")]
    last = repository.history()[-1]
    assert (last.event, last.reasons) == ("end", [])


def test_the_call_after_a_failed_save_of_the_end_saves_it(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    steps = walk.run.steps(3)
    assert [next(steps) for _ in range(3)] == [0, 1, 2]
    with no_saves(tmp_path / "run"), pytest.raises(SaveFailed):
        next(steps)
    assert list(steps) == []
    newest = Repository.open(tmp_path / "run", "run").commits()[0]
    assert (newest.step, newest.position) == (3, "end")


def test_a_loop_whose_end_was_lost_is_done_again_and_not_followed_by_another(tmp_path: Path) -> None:
    whole = Walk(tmp_path / "whole")
    whole.go(8)
    walk = Walk(tmp_path / "run")
    with walk.blocked, pytest.raises(SaveFailed):
        walk.go(8, block_at=7)
    with pytest.raises(SaveFailed):
        walk.go(8)  # gives the run back, and says once more what was lost
    walk.go(8)
    assert walk.run.report is not None
    assert walk.run.report.step == 5
    assert walk.state() == whole.state()


def test_no_step_is_left_out_when_saves_fail(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    steps = walk.run.steps(20)
    done = [next(steps) for _ in range(5)]
    with no_saves(tmp_path / "run"):
        for _ in range(3):
            done.append(next(steps))  # its save is begun here, and fails in the background
            written()
            with pytest.raises(SaveFailed):
                next(steps)
    done += steps
    assert done == list(range(20))


def test_a_loop_that_could_not_begin_begins_with_the_next_call(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    steps = walk.run.steps(3)
    with Repository.open(tmp_path / "run", "run", create=True).writer(), pytest.raises(RunBusy):
        next(steps)
    assert list(steps) == [0, 1, 2]
    commits = Repository.open(tmp_path / "run", "run").commits()
    assert [(c.step, c.segment) for c in commits] == [(3, 0), (0, 0)]

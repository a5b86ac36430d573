"""From where a trial goes on, by what Tune gives it and what its own run holds: without a session of Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from unbroken.capture.tracked import Tracked
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, NoUsableCheckpoint, RunBusy, StateMismatch
from unbroken.format.pointer import Pointer

from .drive import drive

pytest.importorskip("ray.tune")
torch: Any = pytest.importorskip("torch")


class Started:
    """One trial that has been opened, with an optimizer whose learning rate decays."""

    def __init__(
        self,
        root: Path,
        job: str,
        *,
        lr: float = 0.1,
        given: Pointer | None = None,
        patience: float = 0.0,
        strict: bool = False,
    ) -> None:
        from unbroken.adapters.tune.trial import Trial

        self.weights = torch.nn.Parameter(torch.zeros(3))
        self.opt = torch.optim.SGD([self.weights], lr=lr)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)
        tracked = Tracked()
        tracked.add({"weights": self.weights, "opt": self.opt, "schedule": self.schedule})
        settings = Settings(root=root, job=job, every=1, keep_last=1, strict=strict)
        self.trial = Trial(settings, tracked, {"lr": lr}, hold=2, patience=patience, quiet=True)
        self.report: ResumeReport = self.trial.open(given)
        self.step = self.report.step

    def train(self, steps: int) -> Started:
        for _ in range(steps):
            (self.weights * torch.rand(3)).sum().backward()
            self.opt.step()
            self.schedule.step()
            self.step += 1
            self.trial.engine.step(self.step)
            self.trial.engine.wait()
        return self

    def pointer(self, directory: Path) -> Pointer:
        """Report the newest checkpoint, and return what Tune would keep of it."""
        from unbroken.adapters.tune.pointers import read_pointer

        directory.mkdir(parents=True, exist_ok=True)
        self.trial.pointers.write(directory, self.trial.pointers.newest())
        return read_pointer(directory)

    def close(self) -> Started:
        self.trial.close()
        return self


def parent(tmp_path: Path, steps: int = 2) -> Pointer:
    started = Started(tmp_path / "runs", "parent").train(steps)
    found = started.pointer(tmp_path / "pointer")
    started.train(2).close()
    return found


def test_with_a_pointer_of_its_own_it_goes_on_from_its_newest(tmp_path: Path) -> None:
    first = Started(tmp_path / "runs", "own").train(2)
    old = first.pointer(tmp_path / "pointer")
    first.train(3).close()
    again = Started(tmp_path / "runs", "own", given=old).close()
    assert again.report.step == 5
    assert "Tune's record is of step 2" in again.report.line
    assert torch.equal(again.weights, first.weights)


@pytest.mark.parametrize("how", ["gone", "elsewhere"])
def test_a_trial_whose_run_is_not_there_does_not_begin_anew_in_silence(tmp_path: Path, how: str) -> None:
    first = Started(tmp_path / "runs", "own").train(2)
    old = first.pointer(tmp_path / "pointer")
    first.close()
    if how == "gone":
        shutil.rmtree(tmp_path / "runs" / "own")
    root = tmp_path / ("runs" if how == "gone" else "others")
    with pytest.raises(ConfigError, match="Tune's record is at step 2 of the trial 'own'"):
        Started(root, "own", given=old)


def test_without_a_pointer_it_goes_on_all_the_same(tmp_path: Path) -> None:
    Started(tmp_path / "runs", "own").train(3).close()
    again = Started(tmp_path / "runs", "own").close()
    assert again.report.step == 3
    assert "Tune's record knows no checkpoint" in again.report.line


def test_what_was_reported_is_there_for_another_trial_although_one_is_kept(tmp_path: Path) -> None:
    given = parent(tmp_path)
    child = Started(tmp_path / "runs", "child", given=given).close()
    assert (child.report.step, child.report.origin) == (2, f"commit {given.sequence} of parent")


def test_the_new_learning_rate_wins_over_one_that_a_schedule_has_changed(tmp_path: Path) -> None:
    child = Started(tmp_path / "runs", "child", lr=0.3, given=parent(tmp_path)).close()
    assert child.opt.param_groups[0]["lr"] == 0.3
    assert child.opt.param_groups[0]["initial_lr"] == 0.3
    same = Started(tmp_path / "runs", "same", given=parent(tmp_path / "other")).close()
    assert same.opt.param_groups[0]["lr"] == 0.025  # not chosen anew, so the parent's schedule goes on


def test_an_exploit_is_made_once_and_a_restart_goes_on_with_it(tmp_path: Path) -> None:
    given = parent(tmp_path)
    Started(tmp_path / "runs", "child").train(4).close()
    clone = Started(tmp_path / "runs", "child", lr=0.3, given=given).train(3).close()
    assert clone.step == 5
    again = Started(tmp_path / "runs", "child", lr=0.3, given=given).close()
    assert (again.report.step, again.report.origin) == (5, "")
    assert torch.equal(again.weights, clone.weights)
    # And a second one of the same checkpoint, which the scheduler's other configuration tells, is made.
    second = Started(tmp_path / "runs", "child", lr=0.6, given=given).close()
    assert second.report.origin


def test_a_killed_clone_goes_on_whatever_lies_in_its_configuration(tmp_path: Path) -> None:
    """Tune's record still holds the parent's pointer when a driver is killed."""
    told = drive("clone.py", str(tmp_path), "3", expect=-9)
    assert "goes on at step 2 as a clone of" in told
    again = drive("clone.py", str(tmp_path), "0")
    assert "goes on at step 5 from the newest checkpoint · the last process was killed" in again


def test_a_record_that_knows_only_of_the_exploit_before_does_not_bring_it_back(tmp_path: Path) -> None:
    """A driver may be killed before it has written down the newest exploit."""
    first = parent(tmp_path)
    Started(tmp_path / "runs", "child", lr=0.3, given=first).train(1).close()
    other = Started(tmp_path / "runs", "other").train(6)
    second = other.pointer(tmp_path / "second")
    other.close()
    clone = Started(tmp_path / "runs", "child", lr=0.6, given=second).train(1).close()
    assert clone.step == 7
    again = Started(tmp_path / "runs", "child", lr=0.3, given=first).close()
    assert (again.report.step, again.report.origin) == (7, "")
    assert torch.equal(again.weights, clone.weights)
    assert "opt/defaults/lr: 0.6 -> 0.3 (the new one is used)" in again.report.changes  # which the record has


def test_strictness_is_about_a_person_and_not_about_a_scheduler(tmp_path: Path) -> None:
    clone = Started(tmp_path / "runs", "child", lr=0.3, given=parent(tmp_path), strict=True).train(1).close()
    assert clone.report.origin
    with pytest.raises(StateMismatch, match=r"lr|learning"):
        Started(tmp_path / "runs", "child", lr=0.5, strict=True)


def test_a_parent_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    given = parent(tmp_path)
    with pytest.raises(NoUsableCheckpoint, match="was to go on from commit"):
        Started(
            tmp_path / "runs",
            "child",
            given=Pointer(
                root=str(tmp_path / "elsewhere"),
                job="parent",
                sequence=given.sequence,
                digest=given.digest,
                step=given.step,
            ),
        )


def test_its_own_last_process_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    first = Started(tmp_path / "runs", "own")
    with pytest.raises(RunBusy):
        Started(tmp_path / "runs", "own", patience=0.3)
    first.close()
    assert Started(tmp_path / "runs", "own").close().report.restored

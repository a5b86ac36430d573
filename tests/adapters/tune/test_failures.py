"""Trials that are killed, that raise, and whose experiment is stopped by one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unbroken.repo.repository import Repository, jobs
from unbroken.state.diff import compare

from .drive import drive

pytest.importorskip("ray.tune")
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Failures:
    root: Path
    told: str
    outcome: dict[str, Any]

    def runs(self, experiment: str) -> list[Repository]:
        root = self.root / "checkpoints"
        found = [Repository.open(root, job) for job in jobs(root) if job.startswith(f"{experiment}-")]
        return sorted(found, key=lambda run: run.job.rpartition("_")[2])

    def differing(self, experiment: str) -> list[str]:
        """Return where the trials of an experiment end otherwise than the undisturbed ones."""
        found: list[str] = []
        for run, whole in zip(self.runs(experiment), self.runs("whole"), strict=True):
            commits = run.commits()[0], whole.commits()[0]
            assert [commit.position for commit in commits] == ["end", "end"]
            found += [str(one) for one in compare(whole.load(commits[1]), run.load(commits[0]))]
        return [
            one for one in found if not one.startswith("generators/value/python")
        ]  # never seeded, nor used


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return failing(tmp_path_factory.mktemp("failures"), "retried")


def failing(root: Path, kind: str) -> Failures:
    told = drive("failures.py", str(root), kind)
    return Failures(root, told, json.loads((root / "outcome.json").read_text()))


def test_a_trial_that_was_killed_and_has_raised_ends_as_if_it_had_not(failures: Failures) -> None:
    assert (failures.root / "killed").exists()
    assert (failures.root / "raises").exists()
    assert failures.outcome["retried"]["errors"] == []
    assert "goes on at step 4 from the newest checkpoint · the last process was killed" in failures.told
    assert "goes on at step 8 from the newest checkpoint" in failures.told
    assert failures.differing("retried") == []


@pytest.mark.exactness
def test_after_a_fail_fast_every_trial_goes_on_from_its_own_last_checkpoint(tmp_path: Path) -> None:
    """Fault L7: `Tuner.restore` finds all trials finished, so the same trials are started as a new experiment."""
    failures = failing(tmp_path, "fast")
    assert failures.outcome["fast"]["errors"] != []
    assert failures.outcome["again"]["errors"] == []
    assert [len(run.history()) for run in failures.runs("fast")] == [4, 4]  # two starts and ends of each
    assert failures.differing("fast") == []


def test_the_checkpoint_that_tune_names_loads_whatever_its_score(failures: Failures) -> None:
    """Fault L1: Tune keeps the pointer with the best score, which is the first; the latest still loads."""
    from unbroken.tune import read_pointer

    for experiment in ("whole", "retried"):
        named = failures.outcome[experiment]["checkpoints"]
        assert len(named) == 2
        for directory in named:
            pointer = read_pointer(directory)
            run = Repository.open(pointer.root, pointer.job)
            commit = next(one for one in run.commits() if one.sequence == pointer.sequence)
            assert commit.manifest_digest == pointer.digest
            assert run.load(commit).components


def test_the_last_are_kept_and_the_best(failures: Failures) -> None:
    """Fault L2: with falling scores the best one is old. The others are what is still held for other trials."""
    for run in failures.runs("whole"):
        scored = {int(commit.step): commit.metrics.get("score") for commit in run.commits()}
        assert {12, 10} <= set(scored)
        assert scored[2] == max(score for score in scored.values() if score is not None) == 9.0

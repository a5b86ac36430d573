"""Trainings of Stable-Baselines3 that are told to end inside `train()`, an optimizer's step, an evaluation, an update."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unbroken.repo.repository import Repository

from .asked import Interpreter, differences


@dataclass(frozen=True)
class Told:
    """Told by ten signals at the `at`-th call; `saved` is the step that the last checkpoint is of."""

    case: str
    steps: int
    at: int
    saved: int
    grace: float
    cold: tuple[str, ...] = ("generators",)
    name: str = "SIGTERM"

    def __str__(self) -> str:
        return f"{self.case}-{self.name}-{'held' if not self.grace else 'waits'}"


CASES = [
    Told("ppo_in_optimizer", 256, 9, 192, 300.0, ("model/policy/optimizer",)),
    Told("ppo", 320, 3, 192, 0.0, ("model/rollout_buffer/advantages",), "SIGUSR1"),
    Told("sac", 160, 6, 128, 300.0),
    Told("ars", 4000, 2, -1, 300.0),
]


@pytest.mark.parametrize("told", CASES, ids=str)
def test_told_to_end_it_saves_once_and_goes_on_as_if_nothing_had_been(
    told: Told, first: Interpreter, second: Interpreter, tmp_path: Path
) -> None:
    def order(name: str, **more: Any) -> dict[str, Any]:
        return {
            "case": told.case, "steps": told.steps, "log": str(tmp_path / "log"), "root": str(tmp_path / name),
            "rows": str(tmp_path / f"{name}.rows"), "out": str(tmp_path / f"{name}.json"),
            "files": str(tmp_path / f"{name}.files"), "grace": told.grace, **more,
        }  # fmt: skip

    def said() -> str:
        return (tmp_path / "log").read_text()

    def result(name: str) -> Any:
        return json.loads((tmp_path / f"{name}.json").read_text())

    assert first.run(**order("U")) == 0, said()
    ten = [int(signal.Signals[told.name])] * 10
    assert first.run(**order("R", ask=told.at, signals=ten)) == 75, said()
    run = Repository.open(tmp_path / "R", "job")
    start, saved = sorted(commit.step for commit in run.commits())
    assert start == 0
    assert saved == told.saved if told.saved >= 0 else saved > 0
    assert run.meta(run.commits()[0]).reason == f"preempted by {told.name}"
    assert run.history()[-1].reasons == [f"preempted by {told.name}"]
    assert run.pending() is None
    shutil.copytree(tmp_path / "R", tmp_path / "C")
    assert second.run(**order("R")) == 0, said()
    assert f"goes on at step {saved:,}" in said()
    assert second.run(**order("C", cold=told.cold)) == 0, said()
    assert result("R") == result("U")
    assert differences(tmp_path / "U", tmp_path / "R") == []
    assert result("C") != result("U")

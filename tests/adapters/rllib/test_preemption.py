"""An Algorithm whose process is told to end, although `ray.init` has a handler for SIGTERM that exits at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.rllib")

from tests.adapters.rays import cluster_of_its_own
from unbroken.repo.repository import Repository

SCRIPT = Path(__file__).with_name("told_script.py")


@pytest.mark.exactness
def test_the_iteration_is_finished_and_saved_and_the_next_start_goes_on(tmp_path: Path) -> None:
    def start(iteration: int) -> subprocess.CompletedProcess[str]:
        with cluster_of_its_own() as environment:
            return subprocess.run(
                [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path / "runs"), str(iteration)],
                env=environment, capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip

    told = start(1)
    assert told.returncode == 75, told.stderr
    run = Repository.open(tmp_path / "runs", "run")
    assert [commit.step for commit in run.commits()] == [400, 0]
    assert run.history()[-1].reasons == ["preempted by SIGTERM"]
    episodes = run.meta(run.commits()[0]).episodes
    again = start(-1)
    assert again.returncode == 0, again.stderr
    assert "goes on at step 400" in again.stderr
    assert episodes > 0
    assert f" · {episodes} episodes · " in again.stderr
    assert (run.commits()[0].step, run.commits()[0].position) == (800, "end")

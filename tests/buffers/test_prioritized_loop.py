"""The example with prioritized replay: killed and resumed it draws what the undisturbed one draws; with the
priorities left cold it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

SCRIPT = Path(__file__).parents[1] / "adapters" / "loop_script.py"

pytest.importorskip("torch")


def run_example(root: Path, *, kill: str = "-1", cold: str = "-", expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), kill, cold, "--save-path", str(root), "--timesteps", "900",
         "--save-every", "200"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "EXAMPLE": "loop_prioritized_dqn"},
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done.stderr


def final_state(root: Path) -> Snapshot:
    repository = Repository.open(root, root.name)
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


def test_a_resumed_run_draws_as_the_undisturbed_one_and_a_cold_one_does_not(tmp_path: Path) -> None:
    undisturbed, resumed, cold = (tmp_path / name / "dqn" for name in "URC")
    run_example(undisturbed)
    run_example(resumed, kill="650,settled", expect=-9)
    shutil.copytree(resumed, cold)
    assert "goes on at step 600" in run_example(resumed)
    run_example(cold, cold="priorities")

    assert compare(final_state(undisturbed), final_state(resumed)) == []
    forgot = {difference.place for difference in compare(final_state(undisturbed), final_state(cold))}
    assert any(place.startswith("policy/") for place in forgot)
    assert "buffer/_sums" in forgot

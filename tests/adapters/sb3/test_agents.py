"""PettingZoo's parallel environments through SuperSuit's converter: exact, or declared and said why."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from stable_baselines3 import PPO

from unbroken.adapters.sb3.environments import look_around
from unbroken.capture.watched import WatchedEnvironments
from unbroken.sb3 import CheckpointCallback
from unbroken.testing.env_oracle import three_way_vector
from unbroken.types import Fidelity

from .trainings import small

pytest.importorskip("supersuit")
from .agents import Hidden, Tag, Together, vector


def train(root: Path, out: Path, kill: int = 0, cold: str = "-") -> int:
    script = "tests.adapters.sb3.agents_script"
    with out.with_suffix(".log").open("w") as log:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", script, str(root), str(out), str(kill), cold],
            stdout=log, stderr=log, check=False, cwd=Path(__file__).parents[3],
        ).returncode  # fmt: skip


def test_a_killed_training_with_several_agents_ends_as_if_never_stopped(tmp_path: Path) -> None:
    assert train(tmp_path / "undisturbed", tmp_path / "U") == 0, (tmp_path / "U.log").read_text()
    root, kept = tmp_path / "killed", tmp_path / "kept"
    assert train(root, tmp_path / "K", kill=42) == -signal.SIGKILL
    shutil.copytree(root, kept)
    assert train(root, tmp_path / "R") == 0, (tmp_path / "R.log").read_text()
    shutil.rmtree(root)
    shutil.copytree(kept, root)
    assert train(root, tmp_path / "C", cold="model/env") == 0, (tmp_path / "C.log").read_text()
    ends = [(tmp_path / name).read_text() for name in "URC"]
    assert ends[1] == ends[0]
    assert ends[2] != ends[0]
    assert ends[0].endswith("exact")


def test_a_vector_with_gymnasiums_face_goes_on_too() -> None:
    outcome = three_way_vector(partial(vector, Tag(), face="gymnasium"), before=45, dialect=Together())
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.promise.fidelity is Fidelity.EXACT


def test_state_that_no_attribute_shows_is_never_called_exact() -> None:
    env = vector(Hidden(), face="gymnasium")
    env.reset(seed=1)
    promise = WatchedEnvironments().watch({"env": env})["env_states"]
    assert promise.fidelity is Fidelity.APPROXIMATE
    assert "keeps state out of reach" in promise.reason


def test_copies_in_processes_of_supersuit_are_not_captured_and_the_way_out_is_named() -> None:
    env = vector(Tag(), processes=2)
    try:
        model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, **small(seed=None))
        env.reset()
        promise = look_around(model, CheckpointCallback(1, "unused")).promise
        assert promise.fidelity is Fidelity.NOT_CAPTURED
        assert "num_cpus=1" in promise.reason
    finally:
        env.venv.close()

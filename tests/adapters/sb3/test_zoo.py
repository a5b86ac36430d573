"""RL Baselines3 Zoo: its own command, its own hyperparameter file, one entry more; killed and started again."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from .test_exactness import HERE, differences
from .trainings import weights

EXAMPLE = HERE / "examples/rl_zoo/ppo.yml"
KILL = 85
"""Steps of the eight environments; between a checkpoint at 75 and the next at 100."""

if (
    importlib.util.find_spec("rl_zoo3") is None
):  # not imported here: it changes gymnasium for the whole process
    pytest.skip("RL Zoo is not installed", allow_module_level=True)
yaml: Any = importlib.import_module("yaml")


def hyperparameters(folder: Path) -> Path:
    """Write the example's file with what the test needs beside it."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    settings = found["CartPole-v1"]
    (name, ours), *_ = settings["callback"][0].items()
    settings["callback"] = [
        {name: {**ours, "every": 200, "name_prefix": "job"}},
        "tests.adapters.sb3.zoo.Trial",
    ]
    settings["n_epochs"] = 2
    path = folder / "ppo.yml"
    path.write_text(yaml.safe_dump(found))
    return path


def start(folder: Path, conf: Path, **variables: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [
                sys.executable, "-W", "ignore", "-m", "rl_zoo3.train", "--algo", "ppo", "--env", "CartPole-v1",
                "--conf-file", str(conf), "--seed", "3", "--n-timesteps", "1500", "--eval-freq", "200",
                "--eval-episodes", "2", "--device", "cpu", "--num-threads", "1", "--progress",
            ],
            cwd=folder, stdout=said, stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), **variables},
        )  # fmt: skip


def test_a_training_of_the_zoo_that_is_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    conf = hyperparameters(tmp_path)
    undisturbed, killed, cold = (tmp_path / name for name in "URC")

    def said() -> str:
        return "".join(path.read_text(errors="replace") for path in tmp_path.glob("*/said"))

    starts = [start(undisturbed, conf), start(killed, conf, ZOO_KILL=str(KILL))]
    assert [process.wait() for process in starts] == [0, -9], said()
    shutil.copytree(killed, cold)
    starts = [start(killed, conf), start(cold, conf, ZOO_COLD="generators")]
    assert [process.wait() for process in starts] == [0, 0], said()
    assert "goes on at step 600" in (killed / "said").read_text(errors="replace")

    expected = left_by(undisturbed / "logs/ppo/CartPole-v1_1")
    # The Zoo makes a directory for each start: the one that goes on has everything in its own.
    assert left_by(killed / "logs/ppo/CartPole-v1_2") == expected
    assert differences(undisturbed / "runs", killed / "runs") == []
    assert left_by(cold / "logs/ppo/CartPole-v1_2")["weights"] != expected["weights"]


def left_by(folder: Path) -> dict[str, Any]:
    normalized = VecNormalize.load(
        str(folder / "CartPole-v1/vecnormalize.pkl"), make_vec_env("CartPole-v1", n_envs=8)
    )
    statistics: list[Any] = [normalized.obs_rms, normalized.ret_rms]
    model, best = (PPO.load(folder / f"{name}.zip", device="cpu") for name in ("CartPole-v1", "best_model"))
    with np.load(folder / "evaluations.npz") as arrays:
        evaluations = {name: arrays[name].tolist() for name in arrays.files}
    return {
        "weights": weights(model),
        "best": (weights(best), best.num_timesteps),
        "statistics": [[one.mean.tolist(), one.var.tolist(), one.count] for one in statistics],
        "evaluations": evaluations,
        "episodes": {
            path.name: [line.split(",")[:2] for line in path.read_text().splitlines()[1:]]
            for path in folder.glob("*.monitor.csv")
        },
    }

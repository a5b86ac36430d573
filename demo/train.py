"""A training with Unbroken. After a kill it is started again with the same command, nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from demo.recorder import Recorder, save_weights
from demo.tasks import TASKS
from unbroken.sb3 import CheckpointCallback


def main(name: str) -> None:
    task = TASKS[name]
    model = task.build(task.envs())
    callback: list[BaseCallback] = [
        Recorder(Path("trail.bin")),
        CheckpointCallback(save_freq=task.save_freq, save_path="runs"),
    ]
    model.learn(task.timesteps, callback=callback)
    save_weights(model, Path("weights.npz"))


if __name__ == "__main__":
    main(sys.argv[1])

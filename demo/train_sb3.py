"""The same training with what Stable-Baselines3 itself offers, used as its documentation says.

Its CheckpointCallback saves the model and the replay buffer at the same interval. After a kill the
newest pair is loaded and `learn` is asked for the remaining steps, without a reset of the counter.
"""

from __future__ import annotations

import pickle
import sys
import zipfile
from pathlib import Path

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

from demo.recorder import Recorder, save_weights
from demo.tasks import TASKS, Task

TORN = (
    AssertionError,  # a zip file without its entries
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""What loading raises when the kill has hit SB3 in the middle of writing."""


def load_newest(task: Task, folder: Path) -> PPO | DQN | None:
    """Load the newest checkpoint that can be read: the kill may have hit SB3 while it wrote one."""
    steps = sorted(
        (int(path.stem.split("_")[-2]) for path in folder.glob("rl_model_[0-9]*_steps.zip")), reverse=True
    )
    for step in steps:
        try:
            model: PPO | DQN = task.algorithm.load(folder / f"rl_model_{step}_steps", env=task.envs())
            if isinstance(model, DQN):
                model.load_replay_buffer(folder / f"rl_model_replay_buffer_{step}_steps.pkl")
        except TORN:
            print(f"the checkpoint of step {step} cannot be read")
        else:
            return model
    return None


def main(name: str) -> None:
    task = TASKS[name]
    saves = Path("saves")
    callback: list[BaseCallback] = [
        Recorder(Path("trail.bin")),
        CheckpointCallback(save_freq=task.save_freq, save_path=str(saves), save_replay_buffer=True),
    ]
    model = load_newest(task, saves)
    if model is None:
        model = task.build(task.envs())
        model.learn(task.timesteps, callback=callback)
    else:
        remaining = task.timesteps - model.num_timesteps
        model.learn(remaining, callback=callback, reset_num_timesteps=False)
    save_weights(model, Path("weights.npz"))


if __name__ == "__main__":
    main(sys.argv[1])

"""Run by test_packaging.py where the wheel is installed: a user's training, which may be killed in the middle.

`python train.py ROOT [CALLS]`: killed at this call of `env.step`, if a checkpoint is there by then. Prints the step at
which it began and a digest of the final weights.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import unbroken
from unbroken.sb3 import CheckpointCallback


class Kill(BaseCallback):
    """Ends the process as the kernel does when memory is short, once a checkpoint other than the first is there."""

    def __init__(self, root: Path, calls: int) -> None:
        super().__init__()
        self._commits = root
        self._at = calls

    def _on_step(self) -> bool:
        if self.n_calls >= self._at and len(list(self._commits.glob("*/commits/*.json"))) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


root = Path(sys.argv[1])
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), n_steps=64, seed=0, device="cpu")
saving = CheckpointCallback(save_freq=60, save_path=root)
callbacks: list[BaseCallback] = [saving, *([Kill(root, int(sys.argv[2]))] if len(sys.argv) > 2 else [])]
model.learn(1_024, callback=callbacks)
digest = hashlib.sha256()
for tensor in model.policy.state_dict().values():
    digest.update(tensor.numpy().tobytes())
began = saving.report.step if isinstance(saving.report, unbroken.ResumeReport) else None
print("began at", began, "weights", digest.hexdigest())

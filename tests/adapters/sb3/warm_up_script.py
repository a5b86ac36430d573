"""PPO on CartPole with normalized observations: killed at a step, or started again with or without a trial.

`warm_up_script.py ROOT KILL MODE`: `KILL` is the step at which the process ends itself, 0: never. `MODE` is `plain`;
`trial`, a warm-up that plays in the training's own environments and rejects what is older than its second argument says;
or `untidy`, which plays the same episodes when training has begun again, and undoes nothing.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from unbroken.sb3 import CheckpointCallback, WarmUp

ROOT, KILL, MODE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
LEAST = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
TOTAL = 384


class Killer(BaseCallback):
    """Ends the process at a step, and plays once where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 if MODE == "untidy" else 0

    def _on_step(self) -> bool:
        session = ours._session
        if session is not None and session._engine is not None:
            session._engine._writer.wait()  # what a kill leaves is no matter of the disk
        if self.num_timesteps == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left:
            self.left = 0
            WarmUp(episodes=2)(self.model)
        return True


torch.set_num_threads(1)
random.seed(3)
np.random.seed(3)  # noqa: NPY002 - the global generator is part of the state
torch.manual_seed(3)
env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=3))
model = PPO(
    "MlpPolicy",
    env,
    n_steps=32,
    batch_size=16,
    n_epochs=1,
    seed=3,
    device="cpu",
    policy_kwargs={"net_arch": [8]},
)
warm_up = WarmUp(episodes=2, least=LEAST) if MODE == "trial" else None
ours = CheckpointCallback(every=32, save_path=ROOT, keep_last=20, warm_up=warm_up)
model.learn(TOTAL, callback=[ours, Killer()])
assert ours.report is not None
digest = hashlib.sha256()
for name, tensor in sorted(model.policy.state_dict().items()):
    digest.update(name.encode() + tensor.numpy().tobytes())
digest.update(repr((env.ret_rms.mean, env.ret_rms.var, env.obs_rms.__dict__, model.num_timesteps)).encode())
digest.update(repr((random.random(), np.random.random(), torch.rand(1).item())).encode())  # noqa: NPY002
print(digest.hexdigest(), ours.report.step, ours.report.tier.value, "lets it pass" in ours.report.text)
print("\n".join(ours.report.reasons))

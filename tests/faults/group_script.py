"""A training with its environments in processes of their own, whose whole group is told to end. For tests.

`group_script.py KIND ROOT OUT [SIGNAL [COUNT]]`. KIND: sb3-forkserver, sb3-fork, sb3-spawn, or async. With a signal the
first start sends it to its process group, COUNT times, in the middle of a step. The end is written to OUT.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import unbroken

STEPS, TOLD_AT = 40, 25
warnings.simplefilter("ignore")


def tell_group() -> None:
    """Send the signal to every process of this group, this one and its workers."""
    if len(sys.argv) > 4:
        for _ in range(int(sys.argv[5]) if len(sys.argv) > 5 else 1):
            os.killpg(0, signal.Signals[sys.argv[4]])


def asynchronous(root: str) -> str:
    envs = gym.vector.AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    rng = np.random.default_rng(1)
    total = np.zeros(4)
    run = unbroken.Run(root, job="run", every=10)
    run.track(envs=envs, rng=rng, total=total)
    run.vars.obs, _ = envs.reset(seed=3)
    for step in run.steps(STEPS):
        envs.step_async(rng.integers(2, size=2))
        if step == TOLD_AT:
            tell_group()
        run.vars.obs, *_ = envs.step_wait()
        total += run.vars.obs.sum(axis=0)
    return digest(total, run.vars.obs, rng.random(3))


def sb3(root: str, method: str) -> str:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from unbroken.sb3 import CheckpointCallback

    class Teller(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == TOLD_AT:
                tell_group()
            return True

    env = make_vec_env(
        "CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": method}
    )
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0)
    model.learn(STEPS * 2, callback=[Teller(), CheckpointCallback(save_freq=10, save_path=root, verbose=1)])
    weights = [parameter.detach().numpy() for parameter in model.policy.parameters()]
    end = digest(*weights, np.asarray(model._last_obs))
    env.close()
    return end


def digest(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


if __name__ == "__main__":
    kind, root, out = sys.argv[1:4]
    end = asynchronous(root) if kind == "async" else sb3(root, kind.partition("-")[2])
    Path(out).write_text(json.dumps(end))

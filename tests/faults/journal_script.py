"""A training that keeps a journal, and may kill itself: `KIND ROOT TOTAL [KILL_AT]`. Prints what it came to."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from typing import Any

import gymnasium
import numpy as np

import unbroken
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import policy_of_loaded
from unbroken.format.journal import fingerprint
from unbroken.state.walk import capture

KINDS = {
    "cartpole": "CartPole-v1",
    "frozenlake": "FrozenLake-v1",
    "lander": "LunarLander-v3",
    "mujoco": "InvertedPendulum-v5",
}


class Drifting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has something of its own, which outlives an episode and goes into every reward."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.drift = 0.0

    def step(self, action: Any) -> Any:
        observation, reward, ended, cut, info = self.env.step(action)
        self.drift = 0.9 * self.drift + float(np.sum(observation))
        return observation, float(reward) + self.drift, ended, cut, info


def loop(kind: str, root: str, total: int, kill_at: int) -> str:
    env = Drifting(gymnasium.make(KINDS[kind]))
    rng = np.random.default_rng(5)
    weights = np.zeros(8)
    observation, _ = env.reset(seed=3)
    run = unbroken.Run(root, job="run", every=20, journal=True, quiet=False)
    run.track(env=env, rng=rng, weights=weights)
    run.vars.observation = observation
    for step in run.steps(total):
        if step % 20 == 1:
            run.wait()  # so that a kill finds every checkpoint
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        space: Any = env.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            action: Any = int(rng.integers(int(space.n)))
        else:
            action = rng.uniform(space.low, space.high).astype(space.dtype)
        observation, reward, ended, cut, _ = env.step(action)
        weights *= 0.99
        weights += rng.standard_normal(8) * float(reward) + float(np.sum(observation))
        if ended or cut:
            observation, _ = env.reset()
        run.vars.observation = observation
    state = capture({"env": env, "generators": GlobalGenerators()}, policy_of_loaded())
    return hashlib.sha256(
        weights.tobytes()
        + repr(rng.bit_generator.state).encode()
        + fingerprint(state.components["env_states"]).encode()
    ).hexdigest()


def sb3(root: str, total: int, kill_at: int) -> str:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from unbroken.engine.settings import Settings
    from unbroken.sb3 import CheckpointCallback

    class Kill(BaseCallback):
        def _on_step(self) -> bool:
            assert ours._session is not None
            assert ours._session._engine is not None
            ours._session._engine.wait()
            if self.num_timesteps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

    venv = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=4))
    model = PPO("MlpPolicy", venv, n_steps=16, batch_size=16, n_epochs=2, seed=1, device="cpu")
    ours = CheckpointCallback(config=Settings(root=root, job="run", every=20, journal=True))
    model.learn(total, callback=[ours, Kill()])
    told = hashlib.sha256()
    for name, tensor in model.policy.state_dict().items():
        told.update(name.encode() + tensor.numpy().tobytes())
    statistics: Any = venv.obs_rms
    told.update(repr((statistics.mean, venv.ret_rms.var)).encode())
    told.update(repr([env.unwrapped.state for env in venv.unwrapped.envs]).encode())  # type: ignore[attr-defined]
    return told.hexdigest()


def shift() -> None:
    """Let the environment answer differently than the one that was saved."""
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    answer: Any = CartPoleEnv.step

    def shifted(self: CartPoleEnv, action: Any) -> Any:
        observation, reward, *rest = answer(self, action)
        return (observation, float(reward) + 1e-9, *rest)

    CartPoleEnv.step = shifted  # type: ignore[method-assign]


if __name__ == "__main__":
    if "SHIFTED" in os.environ:
        shift()
    what, where, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kill = int(sys.argv[4]) if len(sys.argv) > 4 else -1
    print(sb3(where, steps, kill) if what == "sb3" else loop(what, where, steps, kill))

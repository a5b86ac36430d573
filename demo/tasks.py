"""The two trainings of the demo: small, seeded, and quick to learn something on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class Task:
    """One training: what to build, how long to train, how often to save (in calls of `env.step`, as SB3 counts).

    The interval divides neither the rollout nor the training: saves fall in the middle of a rollout,
    as they do in most people's runs.
    """

    title: str
    algorithm: type[PPO | DQN]
    n_envs: int
    build: Callable[[VecEnv], PPO | DQN]
    timesteps: int
    save_freq: int

    def envs(self) -> VecEnv:
        return make_vec_env("CartPole-v1", n_envs=self.n_envs, seed=1)

    @property
    def interval(self) -> int:
        """Environment steps between two saves."""
        return self.save_freq * self.n_envs


def ppo(env: VecEnv) -> PPO:
    return PPO("MlpPolicy", env, n_steps=128, batch_size=128, n_epochs=6, learning_rate=1e-3, seed=1)


def dqn(env: VecEnv) -> DQN:
    return DQN(
        "MlpPolicy",
        env,
        learning_rate=2.3e-3,
        buffer_size=20_000,
        learning_starts=1_000,
        batch_size=128,
        train_freq=128,
        gradient_steps=64,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [128, 128]},
        seed=1,
    )


TASKS = {
    "ppo": Task(
        title="PPO, CartPole-v1, 4 envs",
        algorithm=PPO,
        n_envs=4,
        build=ppo,
        timesteps=24_000,
        save_freq=375,
    ),
    "dqn": Task(
        title="DQN, CartPole-v1",
        algorithm=DQN,
        n_envs=1,
        build=dqn,
        timesteps=14_000,
        save_freq=1_100,
    ),
}

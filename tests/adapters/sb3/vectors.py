"""SB3's vectors for the oracle: how they are spoken to, and some with every wrapper around them."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from unbroken.adapters.sb3.environments import _Looking
from unbroken.adapters.sb3.policy import training_policy
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Promise
from unbroken.testing.env_oracle import Dialect, timeless


class StableBaselines(Dialect):
    """Speaks to a VecEnv of SB3."""

    def reset(self, vector: Any, seed: int) -> Any:
        vector.seed(seed)
        return vector.reset()

    def step(self, vector: Any, action: Any) -> Any:
        *answer, infos = vector.step(action)
        return [*answer, timeless(infos), vector.unwrapped.reset_infos]

    def watch(self, vector: Any) -> Promise:
        looking = _Looking({})
        looking.at(vector)
        return looking.result(()).promise

    def policy(self) -> Policy:
        return training_policy()

    def actions(self, vector: Any, count: int, seed: int) -> list[Any]:
        drawn = super().actions(vector, count * vector.num_envs, seed)
        return [np.array(drawn[i : i + vector.num_envs]) for i in range(0, len(drawn), vector.num_envs)]


class Pictures(gymnasium.Env[Any, Any]):
    """Shows a picture that moves."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.screen = self.np_random.integers(0, 256, (36, 36, 1), np.uint8)
        return self.screen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.screen = np.roll(self.screen, int(action) - 1, 0)
        return self.screen, float(self.screen[0, 0, 0]), bool(self.np_random.random() < 0.05), False, {}


def numbers() -> VecEnv:
    vector = VecMonitor(VecCheckNan(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)))
    return VecNormalize(VecFrameStack(vector, 3))


def pictures() -> VecEnv:
    return VecTransposeImage(VecFrameStack(VecNormalize(DummyVecEnv([Pictures] * 2), norm_obs=False), 2))


def parts() -> VecEnv:
    return VecExtractDictObs(DummyVecEnv([room] * 2), "at")


def workers() -> VecEnv:
    """Environments that tell something at a reset, which a worker sends again with every step."""
    return VecMonitor(SubprocVecEnv([room] * 2, start_method="fork"))


def room() -> Any:
    return importlib.import_module("roomy").Quiet()

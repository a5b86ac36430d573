"""Wrappers and environments of a person, whose state lies in globals of this module."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from stable_baselines3.common.vec_env import VecEnvWrapper

steps = 0
rewards: list[float] = []


def faded(reward: float) -> float:
    global steps
    steps += 1
    return reward / (1 + 0.01 * steps)


class Fading(gym.Wrapper[Any, Any, Any, Any]):
    """Does not say how it was built, as most."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, faded(float(reward)), *rest


class Recorded(RecordConstructorArgs, Fading):
    """Says how it was built, so that a spec names it."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        Fading.__init__(self, env)


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps all in its attributes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) / (1 + 0.01 * self.steps), *rest


class FadingVector(gym.vector.VectorWrapper):
    def step(self, actions: Any) -> Any:
        observation, reward, *rest = self.env.step(actions)
        return observation, np.array([faded(float(one)) for one in reward]), *rest


class FadingVecEnv(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, reward, over, infos = self.venv.step_wait()
        return observations, np.array([faded(float(one)) for one in reward]), over, infos

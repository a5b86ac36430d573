"""Environments whose observations are made of parts, and that end at steps of their own."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


class Quiet(gym.Env[Any, Any]):
    """Draws from its own generator; tells at a reset what it has drawn."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {"at": spaces.Box(-100, 100, (2,), np.float64), "room": spaces.Discrete(50)}
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2)
        self.room = int(self.np_random.integers(50))
        self.ends_in = int(self.np_random.integers(5, 30))
        return self.observe(), {"ends_in": self.ends_in}

    def observe(self) -> Any:
        return {"at": self.at, "room": self.room}

    def step(self, action: Any) -> Answer:
        self.at = self.at + float(action) - 1 + self.np_random.normal(size=2)
        self.ends_in -= 1
        return self.observe(), float(self.at.sum()), self.ends_in == 0, False, {"room": self.room}


class Roomy(Quiet):
    """Draws from the generators of its process as well."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)

    def step(self, action: Any) -> Answer:
        return super().step(float(action) + random.random() + np.random.random())  # noqa: NPY002


class Paired(Quiet):
    """Its observation is a pair."""

    observation_space = spaces.Tuple((spaces.Box(-100, 100, (2,), np.float64), spaces.Discrete(50)))

    def observe(self) -> Any:
        return (self.at, self.room)

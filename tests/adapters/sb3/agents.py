"""Environments of several agents in PettingZoo's manner, and vectors that SuperSuit makes of them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import supersuit
from gymnasium import spaces
from pettingzoo import ParallelEnv

from unbroken.testing.env_oracle import Dialect


class Tag(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """Two that walk about, on ground that changes with the episodes."""

    metadata = {"name": "tag"}
    render_mode = None

    def __init__(self, seed: int = 5) -> None:
        self.possible_agents = ["chaser", "runner"]
        self.agents: list[str] = []
        self.generator = np.random.default_rng(seed)
        self.ground = 0.0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-100, 100, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.ground += 0.1
        self.at = {agent: self.generator.normal(size=2) for agent in self.agents}
        return self.observe(), {agent: {} for agent in self.agents}

    def observe(self) -> Any:
        return {agent: self.at[agent].astype(np.float32) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            self.at[agent] = self.at[agent] + self.ground * (action - 1) + self.generator.normal(size=2)
        over = bool(self.generator.random() < 0.05)
        rewards = {agent: -float(abs(self.at[agent]).sum()) for agent in self.agents}
        ended = dict.fromkeys(self.agents, over)
        return self.observe(), rewards, ended, dict.fromkeys(self.agents, False), {a: {} for a in self.agents}


class Hidden(Tag):
    """Walks on ground that no attribute shows."""

    def __init__(self) -> None:
        super().__init__()
        self.trodden = iter(deque(range(10_000)))

    def step(self, actions: dict[str, Any]) -> Any:
        self.at["chaser"][0] += next(self.trodden)
        return super().step(actions)


class Together(Dialect):
    """Speaks to a vector of SuperSuit's with Gymnasium's face: its action space is that of one agent."""

    def actions(self, vector: Any, count: int, seed: int) -> list[Any]:
        drawn = super().actions(vector, count * vector.num_envs, seed)
        return [np.array(drawn[i : i + vector.num_envs]) for i in range(0, len(drawn), vector.num_envs)]


def vector(env: Any, *, copies: int = 2, processes: int = 0, face: str = "stable_baselines3") -> Any:
    """Return a vector with each agent of each copy as a member."""
    one = supersuit.pettingzoo_env_to_vec_env_v1(env)
    return supersuit.concat_vec_envs_v1(one, copies, num_cpus=processes, base_class=face)

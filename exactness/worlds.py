"""Environments of the matrix's own: what a user might have written, and what nobody can capture."""

from __future__ import annotations

import time
from collections.abc import Generator
from importlib import import_module
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.utils import set_random_seed

import unbroken
from exactness.building import vector

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


class Drift(gymnasium.Env[Any, Any]):
    """A point that drifts. Dict observations, no spec."""

    observation_space: spaces.Space[Any] = spaces.Dict({
        "at": spaces.Box(-100, 100, (2,), np.float32), "left": spaces.Box(0, 40, (1,), np.float32),
    })  # fmt: skip
    # Seeded: gymnasium asks it for a generator before it forks, which would be the system's.
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,), np.float32, seed=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at, self.left = self.np_random.normal(size=2), 25
        return self.observe(), {}

    def observe(self) -> Any:
        return {"at": self.at.astype(np.float32), "left": np.array([self.left], np.float32)}

    def step(self, action: Any) -> Answer:
        self.at = 0.9 * self.at + 0.1 * action + 0.1 * self.np_random.normal(size=2)
        self.left -= 1
        return self.observe(), -float(np.abs(self.at).sum()), False, self.left == 0, {}


class Picture(Drift):
    """The same seen as a gray picture."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 255, (40, 40, 1), np.uint8)

    def observe(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        row, column = np.clip(20 + 10 * self.at, 0, 39).astype(int)
        picture[row, :] = 120
        picture[:, column] = 200
        return picture


class Pair(Drift):
    """The same with Tuple observations and two actions."""

    observation_space: spaces.Space[Any] = spaces.Tuple(
        (spaces.Box(-100, 100, (2,), np.float32), spaces.Discrete(26))
    )
    action_space: spaces.Space[Any] = spaces.Discrete(2, seed=0)

    def observe(self) -> Any:
        return self.at.astype(np.float32), np.int64(self.left)


class Hidden(gymnasium.Env[Any, Any]):
    """Its physics live behind a number, as those of a simulator in C do, and wear out: no reset makes them new."""

    engines: ClassVar[dict[int, list[float]]] = {}
    observation_space: spaces.Space[Any] = spaces.Box(-100, 100, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self) -> None:
        self.handle = self.started()
        self.engines[self.handle] = [0.0, 0.0]
        self.age = 0

    def started(self) -> int:
        return len(self.engines)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.engines[self.handle][0] = float(self.np_random.normal())
        self.age = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array(self.engines[self.handle][:1], np.float32)

    def step(self, action: Any) -> Answer:
        self.age += 1
        x, wear = self.engines[self.handle]
        x = (0.95 - wear) * x + 0.2 * float(action) - 0.1 + 0.1 * float(self.np_random.normal())
        self.engines[self.handle] = [x, 0.99 * wear + 0.002 * abs(x)]
        return self.observe(), -abs(x), False, self.age == 30, {}


class Registered(Hidden):
    """The same; its user has said how to read and write it."""


class Addressed(Hidden):
    """The same behind an address: a number that is another one in each process."""

    def started(self) -> int:
        return id(self)


class Readdressed(Addressed):
    """The same, of which a user has forgotten that the address is an attribute."""


def engine(env: Hidden) -> dict[str, Any]:
    return {"engine": list(env.engines[env.handle]), "age": env.age}


def put_back(env: Hidden, state: dict[str, Any]) -> None:
    env.engines[env.handle][:] = state["engine"]
    env.age = state["age"]


def registered(cls: type[Hidden], count: int = 1, *, attributes: bool = True, processes: bool = False) -> Any:
    """Return such environments after their user has said how; `attributes`: what else they have is walked too."""
    unbroken.register_env_capturer(cls, capture=engine, restore=put_back, attributes=attributes)
    return vector(cls, count, processes=processes)


class Unfolding(gymnasium.Env[Any, Any]):
    """Its state lies in the local variables of a generator, which every reset makes anew."""

    observation_space: spaces.Space[Any] = spaces.Box(-100, 100, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def story(self) -> Generator[float, int, None]:
        x = float(self.np_random.normal())
        while True:
            action = yield x
            x = 0.95 * x + 0.2 * action - 0.1 + 0.1 * float(self.np_random.normal())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.told, self.age = self.story(), 0
        return np.array([next(self.told)], np.float32), {}

    def step(self, action: Any) -> Answer:
        self.age += 1
        x = self.told.send(int(action))
        return np.array([x], np.float32), -abs(x), False, self.age == 30, {}


class Clocked(Drift):
    """Moves with the time of day, which comes back for nobody."""

    def step(self, action: Any) -> Answer:
        self.at = self.at + 0.01 * np.sin(time.time())
        return super().step(action)


def grid(name: str) -> Any:
    """Return a factory of a MiniGrid."""
    gymnasium.register_envs(import_module("minigrid"))

    return lambda max_steps: gymnasium.make(f"MiniGrid-{name}-v0", max_steps=max_steps)


def flat_grid(env: Any) -> Any:
    """Return a MiniGrid without its mission, a text."""
    from minigrid.wrappers import ImgObsWrapper

    return wrappers.FlattenObservation(ImgObsWrapper(env))  # type: ignore[no-untyped-call]


def small_picture(env: Any) -> Any:
    """Return gray pictures of 40 × 40 as those of SB3's networks are: with a channel."""
    space = spaces.Box(0, 255, (40, 40, 1), np.uint8)
    small: Any = wrappers.ResizeObservation(env, (40, 40))
    return wrappers.TransformObservation(small, lambda picture: picture.reshape(40, 40, 1), space)


def evaluation(env: Any, every: int) -> EvalCallback:
    return EvalCallback(env, n_eval_episodes=1, eval_freq=every, verbose=0)


def herd() -> Any:
    """Return two copies of a game of two, as one vector of SB3. It takes no seed, so what would be seeded by a
    model with one is seeded here."""
    set_random_seed(0)
    from pettingzoo import ParallelEnv
    from supersuit import concat_vec_envs_v1, pettingzoo_env_to_vec_env_v1

    class Herd(ParallelEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            self.metadata = {"name": "herd", "render_modes": []}
            self.possible_agents = ["left", "right"]
            self.render_mode = None
            self.agents: list[str] = []
            self.at = np.zeros(2)
            self.age = 0
            self.rng = np.random.default_rng(5)
            self.spaces: dict[str, Any] = {
                agent: (spaces.Box(-100, 100, (2,), np.float32), spaces.Discrete(3))
                for agent in self.possible_agents
            }

        def observation_space(self, agent: str) -> Any:
            return self.spaces[agent][0]

        def action_space(self, agent: str) -> Any:
            return self.spaces[agent][1]

        def observe(self) -> dict[str, Any]:
            return {"left": self.at.astype(np.float32), "right": self.at[::-1].astype(np.float32)}

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                self.rng = np.random.default_rng(seed)
            self.agents = list(self.possible_agents)
            self.at, self.age = self.rng.normal(size=2), 0
            return self.observe(), {agent: {} for agent in self.agents}

        def step(self, actions: dict[str, Any]) -> Any:
            self.age += 1
            moves = np.array([float(actions[agent]) - 1 for agent in self.possible_agents])
            self.at = 0.9 * self.at + 0.1 * moves + 0.1 * self.rng.normal(size=2)
            over = self.age == 20
            answer: Any = (
                self.observe(),
                {agent: -float(np.abs(self.at).sum()) for agent in self.agents},
                dict.fromkeys(self.agents, False),
                dict.fromkeys(self.agents, over),
                {agent: {} for agent in self.agents},
            )
            if over:
                self.agents = []
            return answer

    made = concat_vec_envs_v1(
        pettingzoo_env_to_vec_env_v1(Herd()), 2, num_cpus=1, base_class="stable_baselines3"
    )
    made.action_space.seed(0)
    return made

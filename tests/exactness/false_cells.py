"""Cells that do not hold, each in another way: what the oracle must find."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO

from exactness.building import on_policy, vector
from exactness.cell import Cell
from exactness.worlds import Clocked, Hidden


class Entropy(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds to what is observed a little of what the system calls random."""

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(os.urandom(1)[0] / 1e4)


class Tireless(Hidden):
    """Looks out of reach, but each reset makes all of it new, so that a replay of the episode is exact."""

    engines: ClassVar[dict[int, list[float]]] = {}

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        self.engines[self.handle][1] = 0.0
        return answer


def cart(*inside: Any) -> PPO:
    return PPO("MlpPolicy", vector("CartPole-v1", inside=inside), **on_policy())


def clocked() -> PPO:
    return PPO("MultiInputPolicy", vector(Clocked), **on_policy())


def unseeded() -> PPO:
    model = cart()
    model.action_space = spaces.Discrete(2)
    return model


def tireless() -> PPO:
    return PPO("MlpPolicy", vector(Tireless), **on_policy())


def widened() -> PPO:
    """Another network in each interpreter, which a resume refuses whatever was promised."""
    width = int(os.environ["PYTHONHASHSEED"])
    return PPO("MlpPolicy", vector("CartPole-v1"), **on_policy(policy_kwargs={"net_arch": [width]}))


def refused() -> PPO:
    raise ValueError("this cell cannot be built")


def cell(name: str, build: Any, **more: Any) -> Cell:
    about: dict[str, Any] = {
        "algorithm": "PPO",
        "environment": "CartPole-v1",
        "cold": ("model/policy/optimizer",),
        "steps": 96,
    }
    return Cell(group="false", name=name, build=build, **{**about, **more})


CELLS = [
    cell("another-each-time", lambda: cart(Entropy)),
    cell("unseeded-actions", unseeded),
    cell("nothing-cold", cart, cold=("model/_n_updates",)),
    cell("cannot-be-built", refused),
    cell("promised-less", clocked),
    cell("says-nothing", cart, claim="approximate", because="the clock"),
    cell("exact-after-all", tireless, claim="approximate", because="out of reach"),
    cell("another-reason", clocked, claim="approximate", because="out of reach"),
    cell("begun-anew", clocked, claim="approximate", because="it reads the clock", every=90),
    cell("approximate", clocked, claim="approximate", because="it reads the clock"),
    cell("goes-on", cart, claim="refused", because="RestoreFailed"),
    cell("refused-unsaid", widened, claim="refused", because="StateMismatch"),
    cell("true", cart),
]
BY_KEY = {one.key: one for one in CELLS}

"""Cells that do not hold, each in another way: what the oracle must find."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO

from exactness.building import on_policy, vector
from exactness.cell import Cell
from exactness.worlds import Clocked


class Entropy(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds to what is observed a little of what the system calls random."""

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(os.urandom(1)[0] / 1e4)


def cart(*inside: Any) -> PPO:
    return PPO("MlpPolicy", vector("CartPole-v1", inside=inside), **on_policy())


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
    cell("nothing-cold", cart, cold=("model/_n_updates",)),
    cell("cannot-be-built", refused),
    cell("promised-less", lambda: PPO("MultiInputPolicy", vector(Clocked), **on_policy())),
    cell("exact-after-all", cart, claim="approximate"),
    cell("true", cart),
]
BY_KEY = {one.key: one for one in CELLS}

"""Short trainings, and what is exported of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.cli.command import unbroken
from unbroken.sb3 import CheckpointCallback


class Toy(gym.Env[Any, Any]):
    """An environment of any spaces: observations are drawn, every fifth step ends an episode, every third of these
    by a limit of time."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ended = self.steps % 5 == 0
        late = self.steps % 15 == 0
        return self.observation_space.sample(), float(self.steps), ended and not late, late, {}


def vector(n: int = 3) -> gym.spaces.Box:
    return gym.spaces.Box(-np.arange(1.0, n + 1, dtype=np.float32), np.float32(np.inf), (n,), np.float32)


def bounded(n: int = 2) -> gym.spaces.Box:
    return gym.spaces.Box(np.array([-2.0, 0.5][:n], np.float32), np.array([1.0, 3.7][:n], np.float32))


def build(name: str, observations: gym.Space[Any], actions: gym.Space[Any], **settings: Any) -> Any:
    """Return a model of SB3 on two `Toy` environments, or on one for the algorithms with a replay buffer."""
    import stable_baselines3 as sb3

    on_policy = name in ("PPO", "A2C")
    normalize, count = settings.pop("normalize", False), settings.pop("envs", 2 if on_policy else 1)
    env: Any = DummyVecEnv([lambda: Toy(observations, actions)] * count)
    if normalize:
        env = VecNormalize(env, clip_obs=2.0)
    settings = {"seed": 1, "device": "cpu", **settings}
    settings |= {"n_steps": 8} if on_policy else {"buffer_size": 40, "learning_starts": 8, "batch_size": 4}
    if name == "PPO":
        settings |= {"batch_size": 8, "n_epochs": 1}
    policy = settings.pop("policy", "MlpPolicy")
    package = sb3 if hasattr(sb3, name) else importlib.import_module("sb3_contrib")
    model = getattr(package, name)(policy, env, **settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # a fresh policy does nearly the same whatever it sees
        for parameter in model.policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8)
    return model


def train(model: Any, steps: int, root: Path) -> Path:
    model.learn(steps, callback=CheckpointCallback(1000, str(root / "runs"), verbose=0))
    return root / "runs"


def export(run: Path, directory: Path) -> Path:
    answer = unbroken("export", run, "--to", "neutral", directory, cwd=run.parent)
    assert answer.code == 0, answer.err
    return directory


def observations_of(space: gym.Space[Any], count: int) -> NDArray[Any]:
    space.seed(7)
    drawn = np.stack([space.sample() for _ in range(count)])
    # Noise is all the same to a network of images, unless some are darker.
    return drawn // (np.arange(count)[:, None, None, None] + 1).astype(np.uint8) if drawn.ndim == 4 else drawn

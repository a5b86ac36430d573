"""Small models and vectors of environments, as the cells want them. Everything is made anew at each call.

Networks are tiny and trainings short: what is proved is equality, which needs no learning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

Wrapper = Callable[[Any], Any]


def tiny(**more: Any) -> dict[str, Any]:
    """Return options of a small model."""
    kwargs = {"net_arch": [16, 16], **more.pop("policy_kwargs", {})}
    return {"policy_kwargs": kwargs, "seed": 0, "device": "cpu", **more}


def on_policy(**more: Any) -> dict[str, Any]:
    return tiny(**{"n_steps": 32, "batch_size": 32, "n_epochs": 2, **more})


def off_policy(**more: Any) -> dict[str, Any]:
    return tiny(**{"learning_starts": 30, "buffer_size": 400, "batch_size": 16, **more})


def image(**more: Any) -> dict[str, Any]:
    """Return options of a small model that looks at images."""
    kwargs = {"net_arch": [16], "features_extractor_kwargs": {"features_dim": 16}}
    return {"policy_kwargs": kwargs, "seed": 0, "device": "cpu", **more}


def vector(
    env: str | Callable[..., Any],
    count: int = 1,
    *,
    inside: Sequence[Wrapper] = (),
    processes: bool = False,
    monitor: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return `count` environments as SB3 has them, seeded; `inside` are wrappers of each, innermost first."""

    def wrapped(one: Any) -> Any:
        if processes:
            seed_process()
        for wrapper in inside:
            one = wrapper(one)
        return one

    return make_vec_env(
        env,
        n_envs=count,
        seed=0,
        monitor_dir=monitor,
        wrapper_class=wrapped,
        env_kwargs=kwargs,
        vec_env_cls=SubprocVecEnv if processes else DummyVecEnv,
        vec_env_kwargs={"start_method": "fork"} if processes else {},
    )


def ornstein(size: int = 1) -> OrnsteinUhlenbeckActionNoise:
    return OrnsteinUhlenbeckActionNoise(np.zeros(size), 0.2 * np.ones(size))


def normal(size: int = 1) -> NormalActionNoise:
    return NormalActionNoise(np.zeros(size), 0.2 * np.ones(size))


def seed_process() -> None:
    """Seed the global generators of a worker. A forked one seeds Python's from the system's entropy, so that not
    even two undisturbed runs have the same."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global generator


class NoisyObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Draws from numpy's global generator, which in a worker process is the worker's own."""

    def observation(self, observation: Any) -> Any:
        noise = np.random.normal(0, 0.01, size=observation.shape)  # noqa: NPY002 - the global generator
        return (observation + noise).astype(np.float32)


def noisy_pendulum() -> gymnasium.Env[Any, Any]:
    return NoisyObservation(gymnasium.make("Pendulum-v1"))


def atari(name: str, **kwargs: Any) -> Callable[[], Any]:
    """Return a factory of a game, as Gymnasium registers it."""
    import ale_py

    gymnasium.register_envs(ale_py)
    options: dict[str, Any] = {"frameskip": 1, **kwargs}
    return lambda: gymnasium.make(f"ALE/{name}-v5", **options)

"""A2, F2: what users of Stable-Baselines3 had to remember to save, each in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback
from unbroken.state.nodes import Array, children
from unbroken.state.snapshot import Component


def array_at(component: Component, place: str) -> Any:
    """Return the array that stands at a place of a component."""
    root = next(top for top in component.roots if place == top or place.startswith(f"{top}/"))
    node: Any = component.roots[root]
    for key in place[len(root) :].split("/")[1:]:
        node = dict(children(node))[key]
    assert isinstance(node, Array)
    content = component.content(node.b) if node.b >= 0 else node.data
    return np.frombuffer(content, np.dtype(node.d)).reshape(node.s)


def test_the_buffer_is_saved_though_the_arguments_of_sb3_say_otherwise(tmp_path: Path) -> None:
    def model() -> DQN:
        env = make_vec_env("CartPole-v1", seed=0)
        return DQN("MlpPolicy", env, buffer_size=100, learning_starts=10, seed=0, device="cpu")

    def callback() -> CheckpointCallback:
        return CheckpointCallback(20, tmp_path, save_replay_buffer=False, save_vecnormalize=False)

    class Interrupted(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 65:
                raise KeyboardInterrupt
            return True

    undisturbed = model().learn(120)
    with pytest.raises(KeyboardInterrupt):
        model().learn(120, callback=[callback(), Interrupted()])
    resumed = model().learn(120, callback=callback())
    assert undisturbed.replay_buffer is not None
    assert resumed.replay_buffer is not None
    assert resumed.replay_buffer.observations.tobytes() == undisturbed.replay_buffer.observations.tobytes()
    for one, other in zip(undisturbed.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()


def test_each_checkpoint_has_the_statistics_of_its_own_step(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", seed=0))
    ours = CheckpointCallback(50, tmp_path, keep_last=9)
    statistics: Any = env.obs_rms

    class Noting(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.means: dict[int, bytes] = {}

        def _on_step(self) -> bool:
            self.means[self.num_timesteps] = statistics.mean.tobytes()
            session = ours._session
            assert session is not None and session._engine is not None
            session._engine.wait()  # else a save that is due waits for the one before
            return True

    noting = Noting()
    A2C("MlpPolicy", env, seed=0, device="cpu").learn(200, callback=[ours, noting])
    means = noting.means
    repository = Repository.open(tmp_path, "rl_model")
    compared = 0
    for commit in repository.commits():
        if commit.step in means:
            states = repository.load(commit, ["env_states"]).components["env_states"]
            assert array_at(states, "model/env/obs_rms/mean").tobytes() == means[commit.step], commit.step
            compared += 1
    assert compared >= 4
    assert len(set(means.values())) == len(means)

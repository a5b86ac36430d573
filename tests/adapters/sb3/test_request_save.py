"""`CheckpointCallback.request_save()`, in one process: when the save comes, and where in the loop it is of."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env

from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback
from unbroken.state.nodes import Dict

from .test_callback import CutAt, _another_process, commits
from .trainings import ppo, small

__all__ = ["_another_process"]  # a fixture for every test here


class AsksInTrain(PPO):
    """Asks for a save in its second `train()`, from another thread."""

    ours: CheckpointCallback | None = None
    calls = 0

    def train(self) -> None:
        super().train()
        self.calls += 1
        ours = AsksInTrain.ours
        if self.calls == 2 and ours is not None:
            asking = threading.Thread(target=ours.request_save)
            asking.start()
            asking.join()


def asks_in_train(ours: CheckpointCallback) -> AsksInTrain:
    AsksInTrain.ours = ours
    return AsksInTrain("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), n_steps=32, **small())


@pytest.mark.parametrize("grace", [0, 1e9])
def test_where_train_is_short_a_save_that_is_asked_for_waits_for_the_next_step(
    grace: float, tmp_path: Path
) -> None:
    ours = CheckpointCallback(10_000, tmp_path, grace=grace, keep_last=100)
    asks_in_train(ours).learn(256, callback=[ours, CutAt(10_000, ours)])
    # Two environments: 128 is before the second train(), and the first step after it begins at 128 too.
    found = [(step, Repository.open(tmp_path, "rl_model").meta(c).reason) for step, c in by_step(tmp_path)]
    assert [step for step, _ in found] == [0, 128, 256]
    assert found[1][1] == "requested by the script"
    assert position_of(tmp_path, 128) == ("rollout" if grace == 0 else "step")


def by_step(root: Path) -> list[tuple[int, Any]]:
    return [(commit.step, commit) for commit in reversed(Repository.open(root, "rl_model").commits())]


def position_of(root: Path, step: int) -> object:
    repository = Repository.open(root, "rl_model")
    (commit,) = [commit for commit in repository.commits() if commit.step == step]
    (node,) = [
        part.roots["position"]
        for part in repository.load(commit).components.values()
        if "position" in part.roots
    ]
    assert isinstance(node, Dict) and node.v is not None
    return node.v["kind"]


def test_to_ask_before_the_first_step_or_after_the_end_saves_nothing_more(tmp_path: Path) -> None:
    ours = CheckpointCallback(10_000, tmp_path)
    ours.request_save()
    ppo().learn(64, callback=ours)
    ours.request_save("too late")
    assert commits(tmp_path) == [(0, 0, "start"), (0, 64, "end")]


def test_a_save_below_an_event_is_of_the_step_after_it_and_not_of_what_is_held(tmp_path: Path) -> None:
    evaluation = EvalCallback(
        ppo(n_envs=1).get_env() or pytest.fail("no environment"), eval_freq=8, n_eval_episodes=1, verbose=0
    )
    ours = CheckpointCallback(1, tmp_path, keep_last=100, grace=0)
    ppo().learn(64, callback=[evaluation, EveryNTimesteps(16, ours), CutAt(10_000, ours)])
    assert commits(tmp_path) == [
        (0, 0, "start"), (0, 16, "step"), (0, 32, "step"), (0, 48, "step"), (0, 64, "step"),
        (0, 64, "end"),
    ]  # fmt: skip
    assert position_of(tmp_path, 16) == "step"

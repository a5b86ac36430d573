"""The hooks alone: where the clean points are, and what others see of the hooks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EveryNTimesteps
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from unbroken.adapters.sb3.policy import CALLBACK_HOOKS, HOOKS
from unbroken.adapters.sb3.position import Position
from unbroken.adapters.sb3.training_loop import TrainingLoop

from .trainings import a2c, dqn, ppo, sac, sac_gsde, td3_episodic, weights

Model = OnPolicyAlgorithm | OffPolicyAlgorithm


class Watcher(BaseCallback):
    """Stands where the checkpoint callback will stand, and notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, int, int]] = []
        self.long: list[tuple[str, str, int]] = []
        self.episodes = 0
        self.stop_at = 0
        self.ended: Position | None = None
        self.errors: list[BaseException] = []

    def _init_callback(self) -> None:
        assert isinstance(self.model, (OnPolicyAlgorithm, OffPolicyAlgorithm))
        self.loop = TrainingLoop(self.model, self, self)
        self.loop.install()

    def _on_step(self) -> bool:
        ended = int(sum(self.locals["dones"]))
        self.episodes += ended
        return not (self.stop_at and ended and self.num_timesteps >= self.stop_at)

    def begin(self, root: BaseCallback) -> Position | None:
        return None

    def at_step(self, position: Position) -> None:
        self.points.append((self.model.num_timesteps, position.rollouts, position.steps))

    @contextmanager
    def during(self, what: str, position: Position) -> Generator[None]:
        self.long.append((what, position.kind, position.steps))
        yield

    def finished(self, position: Position) -> None:
        self.ended = copy.copy(position)

    def abandoned(self, error: BaseException) -> None:
        self.errors.append(error)


def clean(model: Model, callback: BaseCallback) -> bool:
    on_model = any(name in vars(model) for name in HOOKS)
    on_callback = any(name in vars(callback) for name in CALLBACK_HOOKS)
    return not on_model and not on_callback and not model.policy._forward_pre_hooks


@pytest.mark.parametrize("stop_at", [0, 60], ids=["to its end", "stopped by a callback"])
@pytest.mark.parametrize("build", [ppo, a2c, dqn, sac, td3_episodic], ids=lambda f: f.__name__)
def test_the_end_counts_every_episode_that_was_over_by_then(build: Callable[[], Model], stop_at: int) -> None:
    watcher, model = Watcher(), build()
    watcher.stop_at = stop_at
    model.learn(400, callback=watcher)
    assert watcher.ended is not None
    assert watcher.ended.kind == ("stopped" if stop_at else "end")
    assert watcher.ended.episodes == watcher.episodes > 0


@pytest.mark.parametrize("build", [ppo, a2c, dqn, sac_gsde, td3_episodic], ids=lambda f: f.__name__)
def test_every_environment_step_has_one_clean_point_and_nothing_changes(build: Callable[[], Model]) -> None:
    plain = build().learn(200)
    watcher, watched = Watcher(), build()
    watched.learn(200, callback=watcher)
    assert weights(plain) == weights(watched)
    n_envs = watched.n_envs
    assert [p[0] for p in watcher.points] == list(range(0, watched.num_timesteps, n_envs))
    assert watcher.ended is not None and watcher.ended.kind == "end"
    assert clean(watched, watcher)


@pytest.mark.parametrize(("build", "steps"), [(ppo, 32), (sac_gsde, 8), (td3_episodic, 100)])
def test_every_train_is_announced_with_the_whole_rollout_before_it(
    build: Callable[[], Model], steps: int
) -> None:
    watcher = Watcher()
    build().learn(200, callback=watcher)
    assert len(watcher.long) >= 2
    assert set(watcher.long) == {("train", "rollout", steps)}


def test_a_call_of_the_policy_by_somebody_else_is_no_clean_point() -> None:
    class Asks(BaseCallback):
        def _on_step(self) -> bool:
            with torch.no_grad():
                self.model.policy(torch.zeros(1, 4))
            return True

    watcher = Watcher()
    model = ppo()
    model.learn(64, callback=[Asks(), watcher])
    assert len(watcher.points) == 32


@pytest.mark.parametrize("build", [ppo, sac], ids=lambda f: f.__name__)
def test_what_is_saved_and_copied_in_training_holds_nothing_of_ours(
    build: Callable[[], Model], tmp_path: Path
) -> None:
    class Saves(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 20:
                self.model.save(tmp_path / "in.zip")
                self.twin = copy.deepcopy(self.model)
                self.pickled = pickle.dumps(self.model.policy)
            return True

    saves, watcher, model = Saves(), Watcher(), build()
    model.learn(60, callback=[watcher, saves])
    loaded = type(model).load(tmp_path / "in.zip")
    assert not [name for name in HOOKS if name in vars(loaded)]
    points = len(watcher.points)

    twin: Any = saves.twin
    twin.save(tmp_path / "twin.zip")
    assert (tmp_path / "twin.zip").stat().st_size < 2 * (tmp_path / "in.zip").stat().st_size
    twin.learn(60)
    policy = pickle.loads(saves.pickled)
    if isinstance(model, PPO):
        policy(torch.zeros(1, 4))
    assert len(watcher.points) == points, "a copy reported to the original's watcher"
    assert b"unbroken" not in saves.pickled


@pytest.mark.parametrize("where", ["env", "train"])
def test_hooks_go_when_training_raises(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(BaseCallback):
        def _on_step(self) -> bool:
            if where == "env" and self.n_calls == 5:
                raise RuntimeError("the simulator is gone")
            return True

    def fail(self: object) -> None:
        raise RuntimeError("the simulator is gone")

    watcher, model = Watcher(), ppo()
    callbacks: list[BaseCallback] = [watcher, Fails()]
    if where == "train":
        monkeypatch.setattr(type(model), "train", fail)
    with pytest.raises(RuntimeError, match="simulator"):
        model.learn(640, callback=callbacks)
    assert clean(model, watcher)
    assert len(watcher.errors) == 1
    assert watcher.ended is None


def test_hooks_left_over_do_not_act_in_a_training_that_is_not_ours() -> None:
    watcher, model = Watcher(), ppo()
    model._logger = None  # type: ignore[assignment]
    watcher.init_callback(model)
    assert "collect_rollouts" in vars(model)
    model.learn(64)
    assert watcher.points == []
    assert clean(model, watcher)


@pytest.mark.parametrize("place", ["alone", "first", "last", "event", "best"])
def test_any_place_among_the_callbacks_will_do(place: str) -> None:
    watcher = Watcher()
    other = EveryNTimesteps(1000, Silent())
    evaluation = EvalCallback(
        ppo(n_envs=1).get_env() or pytest.fail("no environment"),
        callback_on_new_best=watcher,
        eval_freq=10_000,
        verbose=0,
    )
    callbacks: dict[str, BaseCallback | list[BaseCallback]] = {
        "alone": watcher,
        "first": [watcher, other],
        "last": [other, watcher],
        "event": [other, EveryNTimesteps(10_000, watcher)],
        "best": [other, evaluation],
    }
    model = ppo()
    model.learn(128, callback=callbacks[place])
    assert len(watcher.points) == 64
    assert watcher.ended is not None
    assert clean(model, watcher)


def test_a_callback_that_stops_the_training_is_told_apart() -> None:
    class Stops(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 40

    watcher, model = Watcher(), ppo()
    model.learn(640, callback=[Stops(), watcher])
    assert watcher.ended is not None and watcher.ended.kind == "stopped"
    watcher, other = Watcher(), sac()
    other.learn(640, callback=[Stops(), watcher])
    assert watcher.ended is not None and watcher.ended.kind == "stopped"


class Silent(BaseCallback):
    def _on_step(self) -> bool:
        return True

"""A script that was changed between two starts: refused before anything is touched, or used and reported."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from unbroken.adapters.sb3 import session
from unbroken.adapters.sb3.policy import HOOKS
from unbroken.errors import StateMismatch
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback

from .trainings import weights


class Cut(Exception):
    pass


class CutAt(BaseCallback):
    """Ends a training as an error of the user's code would, two steps after a save."""

    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours

    def _on_step(self) -> bool:
        if self.n_calls == self.at - 2:
            session = self.ours._session
            assert session is not None and session._engine is not None
            session._engine._writer.wait()
            session._engine.request_save("the test")
        if self.n_calls == self.at:
            raise Cut
        return True


def cut(root: Path, at: int) -> Path:
    """Leave a run whose newest checkpoint is after `at - 2` steps of 2 environments."""
    ours = CheckpointCallback(1000, root)
    with pytest.raises(Cut):
        build().learn(256, callback=[ours, CutAt(at, ours)])
    return root


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    pass


def build(
    algorithm: type[OnPolicyAlgorithm] = PPO,
    *,
    n_envs: int = 2,
    env_id: str = "Pendulum-v1",
    normalize: bool = True,
    wrapper: Any = None,
    g: float = 10.0,
    env_seed: int = 0,
    arch: tuple[int, ...] = (16, 16),
    policy: dict[str, Any] | None = None,
    **options: Any,
) -> OnPolicyAlgorithm:
    env_kwargs = {"g": g} if env_id.startswith("Pendulum") else None
    env = make_vec_env(env_id, n_envs=n_envs, seed=env_seed, wrapper_class=wrapper, env_kwargs=env_kwargs)
    defaults: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu"}
    if algorithm is PPO:
        defaults |= {"batch_size": 32, "n_epochs": 1, "clip_range": lambda left: 0.2 * left}
    return algorithm(
        "MlpPolicy",
        VecNormalize(env) if normalize else env,
        policy_kwargs={"net_arch": list(arch), **(policy or {})},
        **{**defaults, **options},
    )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut in the middle of a rollout, with a checkpoint there."""
    return cut(tmp_path_factory.mktemp("interrupted"), at=45)


def resume(
    root: Path,
    tmp_path: Path,
    *more: BaseCallback,
    total: int = 256,
    strict: bool = False,
    allowed: Collection[str] = (),
    **changed: Any,
) -> tuple[OnPolicyAlgorithm, CheckpointCallback]:
    """Start the script again on a copy of the run, with something changed."""
    copy = shutil.copytree(root, tmp_path / "copy")
    ours, model = CheckpointCallback(10, copy, strict=strict, allow_changed=allowed), build(**changed)
    model.learn(total, callback=[ours, *more])
    return model, ours


def lines(ours: CheckpointCallback) -> list[str]:
    assert ours.report is not None and ours.report.restored
    return list(ours.report.changes)


def half(left: float) -> float:
    return 0.3 * left


GONE = "callback CutAt: was there and is gone (what it held is left out)"
USED = "(the new one is used)"


def test_nothing_changed_is_nothing_reported(interrupted: Path, tmp_path: Path) -> None:
    model, ours = resume(interrupted, tmp_path)
    assert lines(ours) == [GONE]
    undisturbed = build()
    undisturbed.learn(256)
    assert weights(model) == weights(undisturbed)


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "number of environments": ({"n_envs": 3}, ["n_envs: 2 -> 3"]),
    "width of the network": (
        {"arch": (32, 16)},
        [
            "net_arch: [16, 16] -> [32, 16]",
            (
                "policy mlp_extractor.policy_net.0.weight: (16, 3) -> (32, 3), and 5 more tensors of another"
                " shape"
            ),
        ],
    ),
    "depth of the network": ({"arch": (16, 16, 16)}, ["net_arch: [16, 16] -> [16, 16, 16]"]),
    "activation": ({"policy": {"activation_fn": torch.nn.ReLU}}, ["activation_fn: Tanh -> ReLU"]),
    "optimizer": ({"policy": {"optimizer_class": torch.optim.SGD}}, ["optimizer_class: Adam -> SGD"]),
    "no VecNormalize": ({"normalize": False}, ["environment wrappers: VecNormalize -> DummyVecEnv"]),
    "one wrapper more": (
        {"wrapper": Wrapped}, ["environment wrappers: Monitor was saved and the program has Wrapped here."],
    ),
    "algorithm": ({"algorithm": A2C}, ["algorithm: PPO -> A2C"]),
    "environment": (
        {"env_id": "MountainCarContinuous-v0"},
        ["environment: Pendulum-v1 -> MountainCarContinuous-v0", "action_space: high 2.0 -> 1.0",
         "observation_space: (3,) -> (2,)"],
    ),
    "length of a rollout that is under way": (
        {"n_steps": 64}, ["n_steps: the checkpoint lies inside a rollout, of which 11 steps are done."],
    ),
}  # fmt: skip
"""With the lines that tell it, the cause first."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_on_is_refused_and_nothing_is_touched(
    what: str, interrupted: Path, tmp_path: Path
) -> None:
    changed, named = REFUSED[what]
    untouched, model = build(**changed), build(**changed)
    ours = CheckpointCallback(10, shutil.copytree(interrupted, tmp_path / "copy"))
    with pytest.raises(StateMismatch) as caught:
        model.learn(256, callback=ours)
    told = caught.value.differences
    assert [line[: len(start)] for line, start in zip(told, named, strict=False)] == named, told
    assert not any("_modules" in line or "model/" in line for line in told), told
    passable = what == "number of environments"  # what an option lets pass: see test_resizing
    assert ('allow_changed={"n_envs"}' in str(caught.value)) == passable
    assert ("allow_changed" in str(caught.value)) == passable
    assert weights(model) == weights(untouched)
    assert not any(name in vars(model) for name in HOOKS)


def test_between_two_rollouts_their_length_may_change(tmp_path: Path) -> None:
    model, ours = resume(cut(tmp_path / "run", at=34), tmp_path, n_steps=64)
    assert any("n_steps" in line for line in lines(ours))
    assert model.num_timesteps == 64 + 2 * 128


def dying_in_train(algorithm: type[Any], **options: Any) -> Any:
    """Return a model that asks for a save at the end of its second `train()` and dies there."""

    class Dies(algorithm):  # type: ignore[misc]
        def train(self, *args: Any, **kwargs: Any) -> None:
            super().train(*args, **kwargs)
            (running,) = session._open.values()
            assert running._engine is not None
            running.request("the cluster")
            running._engine._writer.wait()
            if self._n_updates > 1:
                raise Cut

    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    return Dies("MlpPolicy", env, policy_kwargs={"net_arch": [16]}, seed=0, device="cpu", **options)


@pytest.mark.parametrize(
    ("algorithm", "options", "changed", "done"),
    [
        (PPO, {"n_steps": 16, "batch_size": 16, "n_epochs": 1}, {"n_steps": 32}, 16),
        (DQN, {"train_freq": 8, "learning_starts": 4, "buffer_size": 99}, {"train_freq": 4}, 8),
    ],
)
def test_between_a_rollout_and_its_training_another_length_is_refused_and_nothing_is_touched(
    algorithm: type[Any], options: dict[str, Any], changed: dict[str, Any], done: int, tmp_path: Path
) -> None:
    def start(**more: Any) -> None:
        model = dying_in_train(algorithm, **{**options, **more})
        before = weights(model)
        try:
            model.learn(128, callback=CheckpointCallback(1000, tmp_path, grace=0))
        finally:
            if more:
                assert weights(model) == before
                assert not any(name in vars(model) for name in HOOKS)

    with pytest.raises(Cut):
        start()
    repository = Repository.open(tmp_path, "rl_model")
    newest = repository.commits()[0]
    assert repository.meta(newest).reason == "the cluster"
    with pytest.raises(StateMismatch) as caught:
        start(**changed)
    (told,) = caught.value.differences
    (name,) = changed
    assert told.startswith(f"{name}: the checkpoint lies inside a rollout, of which {done} steps are done.")
    assert repository.commits()[0] == newest
    with pytest.raises(Cut):
        start()  # with the former length it goes on, to the end of a `train()`


NEW_VALUE: dict[str, tuple[dict[str, Any], str, Callable[[Any], bool]]] = {
    "learning rate": (
        {"learning_rate": 1e-3}, f"learning_rate: 0.0003 -> 0.001 {USED}", lambda m: m.learning_rate == 1e-3,
    ),
    "gamma": (
        {"gamma": 0.9}, f"gamma: 0.99 -> 0.9 {USED}", lambda m: m.gamma == m.rollout_buffer.gamma == 0.9,
    ),
    "code of a schedule": (
        {"clip_range": half}, f"clip_range: a lambda -> half {USED}", lambda m: m.clip_range(1.0) == 0.3,
    ),
    "constant for a schedule": (
        {"clip_range": 0.1}, f"clip_range: a lambda -> ConstantSchedule {USED}",
        lambda m: m.clip_range(1.0) == 0.1,
    ),
    "argument of the environment": (
        {"g": 9.0}, f"environment g: 10.0 -> 9.0 {USED}",
        lambda m: all(e.unwrapped.g == 9.0 for e in m.env.venv.envs),
    ),
    "seed of the model": (
        {"seed": 5}, "seed: 0 -> 5 (has no effect on a run that goes on)", lambda m: m.seed == 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NEW_VALUE)
def test_a_new_value_wins_and_is_reported(what: str, interrupted: Path, tmp_path: Path) -> None:
    changed, named, holds = NEW_VALUE[what]
    model, ours = resume(interrupted, tmp_path, **changed)
    assert sorted(lines(ours)) == sorted([GONE, named])
    assert holds(model)
    assert model.num_timesteps == 256


@pytest.mark.parametrize("what", NEW_VALUE)
def test_strict_refuses_a_new_value(what: str, interrupted: Path, tmp_path: Path) -> None:
    changed, named, _ = NEW_VALUE[what]
    line = named.partition(" (")[0]
    with pytest.raises(StateMismatch) as caught:
        resume(interrupted, tmp_path, strict=True, **changed)
    assert line in caught.value.differences
    # What the error says would help does help.
    shown = str(caught.value).partition("allow_changed=")[2].rstrip(".")
    allowed: set[str] = ast.literal_eval(shown)
    _, ours = resume(interrupted, tmp_path / "again", strict=True, allowed=allowed, **changed)
    assert named in lines(ours)


def test_the_seed_of_the_environments_changes_nothing(interrupted: Path, tmp_path: Path) -> None:
    model, _ = resume(interrupted, tmp_path, env_seed=99)
    undisturbed = build()
    undisturbed.learn(256)
    assert weights(model) == weights(undisturbed)


def test_one_callback_more_starts_fresh(interrupted: Path, tmp_path: Path) -> None:
    extra = StopTrainingOnMaxEpisodes(1000)
    model, ours = resume(interrupted, tmp_path, extra)
    assert any("StopTrainingOnMaxEpisodes" in line for line in lines(ours))
    assert 0 < extra.n_calls < 128
    undisturbed = build()
    undisturbed.learn(256)
    assert weights(model) == weights(undisturbed)


def test_more_steps_are_trained_to_the_new_end(interrupted: Path, tmp_path: Path) -> None:
    model, ours = resume(interrupted, tmp_path, total=512)
    assert model.num_timesteps == 512
    assert f"learn(): 256 -> 512 steps {USED}" in lines(ours)


def test_a_finished_run_that_is_given_more_steps_says_both_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build().learn(64, callback=CheckpointCallback(1000, tmp_path))
    session._finished.clear()
    model = build()
    model.learn(1280, callback=CheckpointCallback(1000, tmp_path))
    session._finished.clear()
    assert model.num_timesteps == 1280
    assert "had finished at step 64, goes on to 1,280 from" in capsys.readouterr().err


def test_a_model_that_was_loaded_from_the_users_own_file_goes_on_as_the_one_that_was_built(
    interrupted: Path, tmp_path: Path
) -> None:
    build().save(tmp_path / "model.zip")
    model = PPO.load(tmp_path / "model.zip", env=build().env)
    ours = CheckpointCallback(10, shutil.copytree(interrupted, tmp_path / "copy"))
    model.learn(256, callback=ours)
    session._finished.clear()
    assert [line for line in lines(ours) if not line.startswith(("callback", "clip_range"))] == []
    undisturbed = build()
    undisturbed.learn(256)
    assert weights(model) == weights(undisturbed)

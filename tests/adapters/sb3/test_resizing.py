"""Another number of environments: refused unless it is allowed; then what can come back comes back, every
environment begins an episode with the seed of its index, and the run says that it is no longer exact."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from stable_baselines3.her import HerReplayBuffer

from unbroken.adapters.sb3 import session
from unbroken.errors import StateMismatch
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback

from .trainings import weights

ALLOWED = frozenset({"n_envs"})
CHANGED = "n_envs: {} -> {} (allowed, so the run is no longer exact)"
SEED = 7


class Cut(Exception):
    pass


def plain(values: Any) -> Any:
    """Return a copy of an observation, an array or a tensor."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    return np.array(values.tolist())


class Record(BaseCallback):
    """Copies what is to come back: asks for a save after `at` calls, and ends the training two later."""

    def __init__(self, ours: CheckpointCallback, at: int) -> None:
        super().__init__()
        self.ours = ours
        self.at = at
        self.seen: dict[str, Any] = {}

    def _on_step(self) -> bool:
        if self.n_calls == self.at:
            session = self.ours._session
            assert session is not None and session._engine is not None
            session._engine._writer.wait()
            session._engine.request_save("the test")
            self.seen = state(self.model)
        if self.n_calls == self.at + 2:
            raise Cut
        return True

    def _on_rollout_start(self) -> None:
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if self.n_calls == self.at and buffer is not None:
            # The step is stored and learned from only now; the save comes before the next one.
            self.seen = {**state(self.model), "rows": transitions(buffer, buffer.pos)}


def state(model: Any) -> dict[str, Any]:
    """Return what a training holds that does not depend on the number of environments."""
    seen: dict[str, Any] = {
        "weights": weights(model),
        "optimizer": [
            plain(part)
            for moments in getattr(model.policy, "optimizer", model.policy)
            .state_dict()
            .get("state", {})
            .values()
            for part in moments.values()
        ],
        "steps": model.num_timesteps,
        "updates": model._n_updates,
        "episodes": list(model.ep_info_buffer),
        "actions": str(model.action_space.np_random.bit_generator.state),
    }
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        seen["statistics"] = [normalize.obs_rms.mean, normalize.obs_rms.var, normalize.obs_rms.count]
        seen["statistics"] += [normalize.ret_rms.mean, normalize.ret_rms.var, normalize.ret_rms.count]
        seen["statistics"] = [np.array(one) for one in seen["statistics"]]
    return seen


def transitions(buffer: Any, up_to: int) -> dict[str, NDArray[Any]]:
    """Return the transitions of a buffer before line `up_to`, oldest first, table by table."""
    order = [*range(up_to, buffer.buffer_size), *range(up_to)] if buffer.full else [*range(up_to)]
    tables = {}
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        value = getattr(buffer, name, {})
        for key, table in value.items() if isinstance(value, dict) else [("", value)]:
            tables[f"{name}/{key}"] = np.concatenate([table[line] for line in order])
    return tables


class First(BaseCallback):
    """Copies the state that the first rollout of a start begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def _on_rollout_start(self) -> None:
        if not self.seen:
            model: Any = self.model
            self.seen = {
                **state(model),
                "observation": plain(model._last_obs),
                "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index] # noqa: NPY002
                "torch": torch.get_rng_state().tolist(),
            }
            buffer = getattr(model, "replay_buffer", None)
            if buffer is not None:
                self.seen["rows"] = transitions(buffer, buffer.pos)

    def _on_step(self) -> bool:
        return True


Build = Callable[[int], Any]


def ppo(n_envs: int, *, normalize: bool = True, vec_env: Any = None, **options: Any) -> PPO:
    env = make_vec_env("Pendulum-v1", n_envs=n_envs, seed=0, vec_env_cls=vec_env)
    defaults: dict[str, Any] = {
        "n_steps": 32, "batch_size": 32, "n_epochs": 1, "seed": SEED, "device": "cpu",
        "policy_kwargs": {"net_arch": [8]},
    }  # fmt: skip
    return PPO(
        "MlpPolicy",
        VecNormalize(env) if normalize else env,
        **{**defaults, **options},
    )


def sac(n_envs: int, *, normalize: bool = True, **options: Any) -> SAC:
    defaults: dict[str, Any] = {
        "learning_starts": 20, "buffer_size": 400, "batch_size": 16, "seed": SEED, "device": "cpu",
        "action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1)),
    }  # fmt: skip
    env = make_vec_env("Pendulum-v1", n_envs=n_envs, seed=0)
    return SAC(
        "MlpPolicy",
        VecNormalize(env) if normalize else env,
        policy_kwargs={"net_arch": [8]},
        **{**defaults, **options},
    )


def dict_dqn(n_envs: int, **options: Any) -> DQN:
    defaults: dict[str, Any] = {
        "learning_starts": 20, "buffer_size": 400, "batch_size": 16, "train_freq": 1, "seed": SEED, "device": "cpu",
    }  # fmt: skip
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4)] * n_envs)
    env.seed(0)
    return DQN("MultiInputPolicy", env, policy_kwargs={"net_arch": [8]}, **{**defaults, **options})


def stacked(n_envs: int) -> PPO:
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * n_envs)
    return PPO(
        "MlpPolicy", VecNormalize(VecFrameStack(VecMonitor(env), 3)), n_steps=32, batch_size=32, n_epochs=1,
        seed=SEED, device="cpu", policy_kwargs={"net_arch": [8]},
    )  # fmt: skip


def recurrent(n_envs: int) -> RecurrentPPO:
    return RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("Pendulum-v1", n_envs=n_envs, seed=0), n_steps=16, batch_size=16, n_epochs=1,
        seed=SEED, device="cpu", policy_kwargs={"net_arch": [8], "lstm_hidden_size": 4},
    )  # fmt: skip


def cut(root: Path, model: Any, at: int) -> dict[str, Any]:
    """Train until a save at step `at` of the vector, and a little on; return what was true at the save."""
    ours = CheckpointCallback(10_000, root)
    record = Record(ours, at)
    with pytest.raises(Cut):
        model.learn(100_000, callback=[ours, record])
    model.env.close()
    return record.seen


def go_on(
    root: Path, model: Any, total: int, *more: BaseCallback, save_freq: int = 10_000, **options: Any
) -> CheckpointCallback:
    ours = CheckpointCallback(save_freq, root, **options)
    model.learn(total, callback=[ours, *more])
    session._finished.clear()
    return ours


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


CASES: dict[str, tuple[Build, int, int, int]] = {
    "ppo, more": (ppo, 2, 3, 45),
    "ppo, fewer": (ppo, 3, 1, 45),
    "ppo, from one": (ppo, 1, 4, 70),
    "ppo with gSDE": (lambda n: ppo(n, use_sde=True, sde_sample_freq=4), 2, 3, 45),
    "wrappers": (stacked, 2, 3, 50),
    "recurrent": (recurrent, 3, 2, 21),
    "sac, more": (sac, 2, 3, 45),
    "sac, fewer": (sac, 3, 1, 45),
    "sac, warming up": (lambda n: sac(n, normalize=False, learning_starts=500), 2, 3, 45),
    "dict observations": (dict_dqn, 3, 2, 60),
}
"""With the number before, the number after, and the step of the vector that is saved."""


@pytest.mark.parametrize("what", CASES)
def test_what_does_not_depend_on_the_number_comes_back(what: str, tmp_path: Path) -> None:
    build, before, after, at = CASES[what]
    saved = cut(tmp_path, build(before), at)
    model, first = build(after), First()
    ours = go_on(tmp_path, model, saved["steps"] + 60 * after, first, allow_changed=ALLOWED)
    for name in saved.keys() - {"rows"}:  # see below
        assert equal(saved[name], first.seen[name]), name
    assert saved["steps"] == before * at
    assert ours.report is not None and ours.report.restored
    assert CHANGED.format(before, after) in ours.report.changes
    assert ours.report.inexact == (f"n_envs: {before} -> {after}",)
    assert model.num_timesteps >= saved["steps"] + 60 * after


@pytest.mark.parametrize(("before", "after", "at"), [(2, 3, 41), (3, 1, 41), (2, 3, 250), (3, 2, 250)])
@pytest.mark.parametrize("build", [sac, dict_dqn])
def test_rows_are_carried_over_in_their_order_the_newest_as_far_as_they_fit(
    build: Callable[..., Any], before: int, after: int, at: int, tmp_path: Path
) -> None:
    saved = cut(tmp_path, build(before, learning_starts=10_000), at)["rows"]
    first = First()
    ours = go_on(
        tmp_path, build(after, learning_starts=10_000), before * at + after, first, allow_changed=ALLOWED
    )
    carried = first.seen["rows"]
    held = min(before * at, 400 // before * before)
    fits = min(held // after, 400 // after) * after
    assert {table.shape[0] for table in carried.values()} == {fits}
    for name, table in carried.items():
        assert np.array_equal(table, saved[name][-fits:]), name
    told = f"all {held:,}" if fits == held else f"the newest {fits:,} of {held:,}"
    assert ours.report is not None
    assert f"replay_buffer: {told} transitions are carried over" in {
        line.partition(" (")[0] for line in ours.report.changes
    }


@pytest.mark.parametrize(
    ("before", "after", "vector"),
    [(2, 4, DummyVecEnv), (3, 2, DummyVecEnv), (2, 3, partial(SubprocVecEnv, start_method="fork"))],
    ids=["more", "fewer", "in workers"],
)
def test_every_environment_begins_an_episode_with_the_seed_of_its_index(
    before: int, after: int, vector: Any, tmp_path: Path
) -> None:
    cut(tmp_path, ppo(before, normalize=False), 45)  # the vector may be of another kind, too
    model, first = ppo(after, normalize=False, vec_env=vector), First()
    ours = go_on(tmp_path, model, 400, first, allow_changed=ALLOWED)
    fresh = [gymnasium.make("Pendulum-v1").reset(seed=SEED + i)[0] for i in range(after)]
    assert np.array_equal(first.seen["observation"], np.stack(fresh))
    assert ours.report is not None
    seeds = ", ".join(str(SEED + i) for i in range(after))
    assert f"environments: begin new episodes, with the seeds {seeds}" in ours.report.changes
    model.env.close()  # type: ignore[union-attr]


def test_the_seeds_are_those_of_the_run_even_if_the_script_has_another_one_now(tmp_path: Path) -> None:
    cut(tmp_path, ppo(2, normalize=False), 45)
    model, first = ppo(3, normalize=False, seed=99), First()
    go_on(tmp_path, model, 300, first, allow_changed=ALLOWED)
    fresh = [gymnasium.make("Pendulum-v1").reset(seed=SEED + i)[0] for i in range(3)]
    assert np.array_equal(first.seen["observation"], np.stack(fresh))


def test_global_generators_come_back(tmp_path: Path) -> None:
    cut(tmp_path, ppo(2), 45)
    seen = []
    for i, seed in enumerate((SEED, 99)):
        root, first = shutil.copytree(tmp_path / "rl_model", tmp_path / str(i) / "rl_model").parent, First()
        go_on(root, ppo(3, seed=seed), 100, first, allow_changed=ALLOWED)
        seen.append(first.seen)
    built = ppo(3, seed=99)
    fresh = First()
    built.learn(96, callback=fresh)
    for generator in ("numpy", "torch"):
        assert seen[0][generator] == seen[1][generator] != fresh.seen[generator]


def test_a_rollout_in_progress_is_left_out_and_said(tmp_path: Path) -> None:
    cut(tmp_path, ppo(2), 45)
    model = ppo(3)
    ours = go_on(tmp_path, model, 200, allow_changed=ALLOWED)
    assert ours.report is not None
    assert any(
        line.startswith("rollout_buffer: the rollout in progress is left out (13 steps of it were done)")
        for line in ours.report.changes
    )
    assert model.num_timesteps == 2 * 45 + 2 * 3 * 32


def test_a_resized_run_is_exact_from_there_on(tmp_path: Path) -> None:
    cut(tmp_path / "U", sac(2), 45)
    shutil.copytree(tmp_path / "U", tmp_path / "R")
    undisturbed: Any = sac(3)
    go_on(tmp_path / "U", undisturbed, 300, allow_changed=ALLOWED)
    ours = CheckpointCallback(10_000, tmp_path / "R", allow_changed=ALLOWED)
    with pytest.raises(Cut):
        sac(3).learn(300, callback=[ours, Record(ours, 80)])
    resumed: Any = sac(3)
    again = go_on(tmp_path / "R", resumed, 300)
    assert weights(resumed) == weights(undisturbed)
    assert equal(*(transitions(one.replay_buffer, one.replay_buffer.pos) for one in (resumed, undisturbed)))
    # And it still says what has set it apart.
    assert again.report is not None and again.report.step > 2 * 45
    assert again.report.inexact == ("n_envs: 2 -> 3",)
    assert not any("n_envs" in line for line in again.report.changes)


def test_the_refusal_names_what_lets_the_change_pass_and_that_does(tmp_path: Path) -> None:
    cut(tmp_path, sac(2), 45)
    model, untouched = sac(3), sac(3)
    with pytest.raises(StateMismatch) as caught:
        go_on(tmp_path, model, 200)
    assert list(caught.value.differences) == ["n_envs: 2 -> 3"]
    assert weights(model) == weights(untouched)
    shown = str(caught.value).partition("allow_changed=")[2].partition(":")[0]
    ours = go_on(tmp_path, sac(3), 200, allow_changed=ast.literal_eval(shown))
    assert ours.report is not None and CHANGED.format(2, 3) in ours.report.changes


def test_the_name_that_gymnasium_has_for_the_number_lets_it_pass_too(tmp_path: Path) -> None:
    cut(tmp_path, sac(2), 45)
    ours = go_on(tmp_path, sac(3), 200, allow_changed={"num_envs"})
    assert ours.report is not None and CHANGED.format(2, 3) in ours.report.changes


def test_another_number_lets_no_other_change_pass(tmp_path: Path) -> None:
    cut(tmp_path, ppo(2), 45)
    with pytest.raises(StateMismatch) as caught:
        go_on(tmp_path, ppo(3, policy_kwargs={"net_arch": [16]}), 200, allow_changed=ALLOWED)
    assert caught.value.differences[0].startswith("net_arch: ")
    assert not any("n_envs" in line for line in caught.value.differences)
    with pytest.raises(StateMismatch) as caught:
        go_on(tmp_path, ppo(3, normalize=False), 200, allow_changed=ALLOWED)
    assert any("VecNormalize" in line for line in caught.value.differences)


def test_a_new_value_beside_it_is_used_and_told(tmp_path: Path) -> None:
    cut(tmp_path, ppo(2), 45)
    model = ppo(3, n_steps=64, gamma=0.9)
    ours = go_on(tmp_path, model, 400, allow_changed=ALLOWED)
    assert ours.report is not None
    assert "gamma: 0.99 -> 0.9 (the new one is used)" in ours.report.changes
    assert "n_steps: 32 -> 64 (the new one is used)" in ours.report.changes
    assert model.n_steps == 64 and model.rollout_buffer.gamma == 0.9


def test_the_environments_of_an_evaluation_go_on_as_they_were(tmp_path: Path) -> None:
    def evaluation() -> EvalCallback:
        return EvalCallback(
            make_vec_env("Pendulum-v1", n_envs=2, seed=3), n_eval_episodes=1, eval_freq=40, verbose=0
        )

    before = evaluation()
    ours = CheckpointCallback(10_000, tmp_path)
    with pytest.raises(Cut):
        ppo(2, normalize=False).learn(100_000, callback=[before, ours, Record(ours, 45)])
    after = evaluation()
    go_on(tmp_path, ppo(3, normalize=False), 100, after, allow_changed=ALLOWED)
    envs: list[Any] = [before.eval_env, after.eval_env]
    states = [[one.unwrapped.np_random.bit_generator.state for one in env.envs] for env in envs]
    assert states[0] == states[1]
    assert after.last_mean_reward == before.last_mean_reward


def her(n_envs: int) -> DQN:
    return dict_dqn(n_envs, replay_buffer_class=HerReplayBuffer)


def optimized(n_envs: int) -> SAC:
    options: dict[str, Any] = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    return sac(n_envs, **options)


def n_step(n_envs: int) -> SAC:
    return sac(n_envs, replay_buffer_class=NStepReplayBuffer)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (her, "HerReplayBuffer"),
        (optimized, "ReplayBuffer with optimize_memory_usage"),
        (n_step, "NStepReplayBuffer"),
    ],
)
def test_rows_that_belong_to_their_environment_are_refused_by_name(
    build: Build, name: str, tmp_path: Path
) -> None:
    cut(tmp_path, build(2), 45)
    model, untouched = build(3), build(3)
    with pytest.raises(StateMismatch) as caught:
        go_on(tmp_path, model, 200, allow_changed=ALLOWED)
    assert list(caught.value.differences) == [
        (
            f"replay_buffer: the rows of a {name} belong to the environment that they came from, and cannot be"
            " carried over to another number of environments"
        )
    ]
    assert weights(model) == weights(untouched)
    assert model.num_timesteps == 0


def test_another_size_of_the_buffer_is_refused_by_its_name(tmp_path: Path) -> None:
    cut(tmp_path, sac(2), 45)
    with pytest.raises(StateMismatch) as caught:
        go_on(tmp_path, sac(2, buffer_size=800), 200)
    assert caught.value.differences[0] == "buffer_size: 400 -> 800"


@pytest.mark.parametrize("vector", [DummyVecEnv, partial(SubprocVecEnv, start_method="fork")])
def test_that_monitor_files_begin_anew_is_said(vector: Any, tmp_path: Path) -> None:
    def build(n_envs: int) -> PPO:
        env = make_vec_env(
            "Pendulum-v1", n_envs=n_envs, seed=0, monitor_dir=str(tmp_path / "files"), vec_env_cls=vector
        )
        return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, device="cpu")

    cut(tmp_path, build(2), 45)
    model = build(3)
    ours = go_on(tmp_path, model, 100, allow_changed=ALLOWED)
    assert ours.report is not None
    assert any(line.startswith("files of Monitor: begin anew") for line in ours.report.changes)
    model.env.close()  # type: ignore[union-attr]


class Ended(BaseCallback):
    """Counts the episodes that end."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def _on_step(self) -> bool:
        self.count += int(np.count_nonzero(self.locals["dones"]))
        return True


@pytest.mark.parametrize("algorithm", [PPO, DQN], ids=lambda a: a.__name__)
def test_episodes_are_counted_on_with_another_number(algorithm: type[Any], tmp_path: Path) -> None:
    ended = Ended()
    options: dict[str, Any] = {"n_steps": 64} if algorithm is PPO else {}
    for n_envs, steps in ((2, 256), (4, 768)):
        model = algorithm("MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=SEED), seed=SEED, **options)
        model.learn(steps, callback=[CheckpointCallback(1000, tmp_path, allow_changed=ALLOWED), ended])
        session._finished.clear()  # as in another process
    newest = Repository.open(tmp_path, "rl_model")
    assert newest.meta(newest.commits()[0]).episodes == ended.count > 20

"""Out of one framework and into another: buffers, statistics and weights arrive as they were."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.adapters.neutral.conftest import Thirty
from tests.adapters.neutral.exported import bounded, build, export, train, vector
from unbroken import PrioritizedReplayBuffer, Ring, Run, neutral
from unbroken.errors import ConfigError, StateMismatch

ACTIONS: gym.spaces.Discrete[Any] = gym.spaces.Discrete(3)


def drawn(buffer: Any, env: Any = None) -> list[NDArray[Any]]:
    """What a buffer of SB3 draws under a seed."""
    np.random.seed(11)  # noqa: NPY002 - SB3 draws from it
    sample = buffer.sample(64, env=env)
    parts = [sample.observations, sample.next_observations, sample.actions, sample.rewards, sample.dones]
    columns = [one for part in parts for one in (part.values() if isinstance(part, dict) else [part])]
    return [column.numpy().copy() for column in columns]


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


BUFFERS: dict[str, dict[str, Any]] = {
    "not full": {"steps": 30},
    "around the end": {"steps": 53, "normalize": True},
    "one observation for two rows": {
        "steps": 53, "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    },
    "one observation for two rows, not full": {
        "steps": 30, "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    },
    "two environments": {"steps": 60, "envs": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == "around the end" else pytest.mark.exactness, id=case)
        for case in BUFFERS
    ],
)
def test_a_buffer_that_comes_back_to_sb3_draws_what_it_would_have_drawn(case: str, tmp_path: Path) -> None:
    settings = dict(BUFFERS[case])
    steps = settings.pop("steps")
    model, fresh = (build("DQN", vector(), ACTIONS, **settings) for _ in range(2))
    directory = export(train(model, steps, tmp_path), tmp_path / "out")
    report = neutral.into_sb3(directory, fresh)
    assert "replay buffer -> model.replay_buffer" in str(report)
    expected = drawn(model.replay_buffer, model.get_vec_normalize_env())
    assert len(np.unique(expected[3])) > 10
    assert same(drawn(fresh.replay_buffer, fresh.get_vec_normalize_env()), expected)
    assert (fresh.replay_buffer.pos, fresh.replay_buffer.full) == (
        model.replay_buffer.pos,
        model.replay_buffer.full,
    )


def test_a_buffer_of_dicts_comes_back(tmp_path: Path) -> None:
    observations = gym.spaces.Dict({"a": vector(), "b": gym.spaces.Discrete(3)})
    model, fresh = (build("DQN", observations, ACTIONS, policy="MultiInputPolicy") for _ in range(2))
    directory = export(train(model, 53, tmp_path), tmp_path / "out")
    neutral.into_sb3(directory, fresh)
    assert same(drawn(fresh.replay_buffer), drawn(model.replay_buffer))
    held = neutral.load(directory).replay["replay_buffer"]
    assert list(held)[:3] == ["obs.a", "obs.b", "next_obs.a"]


def test_columns_say_what_ended_an_episode_and_run_from_the_oldest_row_on(tmp_path: Path) -> None:
    model = build("DQN", vector(), ACTIONS)
    held = neutral.load(export(train(model, 56, tmp_path), tmp_path / "out")).replay["replay_buffer"]
    steps = held["rewards"][:, 0].astype(int)  # the reward of `Toy` is the number of its step
    assert steps.tolist() == list(range(17, 57))
    assert np.array_equal(held["terminated"][:, 0], (steps % 5 == 0) & (steps % 15 != 0))
    assert np.array_equal(held["truncated"][:, 0], steps % 15 == 0)
    assert np.array_equal(held["next_obs"][0], held["obs"][1])
    with pytest.raises(ValueError, match="read-only"):
        held["obs"][0] = 0


def test_weights_statistics_and_rows_come_back_to_sb3(tmp_path: Path) -> None:
    model, fresh = (build("SAC", vector(), bounded(), normalize=True) for _ in range(2))
    directory = export(train(model, 30, tmp_path), tmp_path / "out")
    with torch.no_grad():
        for parameter in fresh.policy.parameters():
            parameter.zero_()
    report = neutral.into_sb3(directory, fresh)
    some = np.linspace(-3, 3, 27, dtype=np.float32).reshape(9, 3)
    outer, other = model.get_vec_normalize_env(), fresh.get_vec_normalize_env()
    assert np.array_equal(other.normalize_obs(some), outer.normalize_obs(some))
    assert np.array_equal(other.normalize_reward(some[:, 0]), outer.normalize_reward(some[:, 0]))
    assert np.array_equal(
        fresh.predict(some, deterministic=True)[0], model.predict(some, deterministic=True)[0]
    )
    acting = neutral.load_policy(directory)
    assert np.array_equal(acting(some), model.predict(outer.normalize_obs(some), deterministic=True)[0])
    assert not np.array_equal(acting(some, normalize=False), acting(some))
    for key, tensor in model.policy.state_dict().items():
        assert torch.equal(fresh.policy.state_dict()[key], tensor)
    assert [line for line in report.left if line.startswith("the optimizer")]
    found = neutral.load(directory).normalizers
    rewards = np.array([1.0, -2.0, 500.0])
    assert np.array_equal(found["rewards"].apply(rewards), outer.normalize_reward(rewards))


class Buffer:
    """A buffer as a person writes it."""

    __unbroken_ring__ = Ring(
        ("states", "following", "actions", "rewards", "dones"), position="ptr", size="size"
    )

    def __init__(self, capacity: int) -> None:
        self.states = np.zeros((capacity, 3), np.float32)
        self.following = torch.zeros(capacity, 3)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.bool_)
        self.ptr = self.size = 0

    def add(self, step: int) -> None:
        row = self.ptr
        self.states[row], self.following[row] = step, step + 1
        self.actions[row], self.rewards[row], self.dones[row] = step % 3, step, step % 7 == 0
        self.ptr = (row + 1) % len(self.states)
        self.size = min(self.size + 1, len(self.states))


def q_network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def loop(root: Path, steps: int, **objects: Any) -> Path:
    """A loop by hand that adds a row a step."""
    with Run(root, every=1000) as run:
        run.track(**objects)
        for step in run.steps(steps):
            if "buffer" in objects:
                objects["buffer"].add(step)
    return root


def test_a_hand_written_dqn_goes_on_in_sb3_with_its_network_and_its_rows(tmp_path: Path) -> None:
    net, buffer = q_network(), Buffer(20)
    directory = export(loop(tmp_path / "runs", 33, net=net, buffer=buffer), tmp_path / "out")
    model = build("DQN", vector(), ACTIONS)
    report = neutral.into_sb3(directory, model, networks={"q_net.q_net": "net", "q_net_target.q_net": "net"})
    some = torch.randn(9, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.equal(model.policy.q_net(some), net(some))
        assert torch.equal(model.policy.q_net_target(some), net(some))
        assert torch.equal(neutral.load_network(directory, "net")(some), net(some))
    rows = model.replay_buffer
    assert (rows.pos, rows.full) == (20, False)
    assert rows.rewards[:20, 0].tolist() == list(range(13, 33))
    assert rows.observations[:20, 0, 2].tolist() == list(range(13, 33))
    assert rows.next_observations[:20, 0, 2].tolist() == list(range(14, 34))
    assert rows.actions[:20, 0, 0].tolist() == [step % 3 for step in range(13, 33)]
    assert rows.dones[:20, 0].tolist() == [step % 7 == 0 for step in range(13, 33)]
    assert "6 tensors of net -> model.policy.q_net.q_net" in str(report)


def test_from_sb3_into_a_loop_and_back_nothing_changes(thirty: Thirty, tmp_path: Path) -> None:
    model, first = thirty.model, thirty.directory
    net, buffer = q_network(), PrioritizedReplayBuffer(
        40, {"obs": ((3,), "f4"), "next_obs": ((3,), "f4"), "actions": ((), "i8"), "rewards": ((), "f4"),
             "terminated": ((), "?"), "truncated": ((), "?")},
    )  # fmt: skip
    taken = neutral.load(first)
    net.load_state_dict(neutral.load_network(first, part="q_net.q_net").state_dict())
    held = taken.replay["replay_buffer"]
    buffer.extend(**{name: held[name].reshape(len(held), *held[name].shape[2:]).squeeze() for name in held})
    second = export(loop(tmp_path / "loop", 1, net=net, rows=buffer), tmp_path / "second")
    fresh = build("DQN", vector(), ACTIONS)
    neutral.into_sb3(second, fresh, networks={"q_net.q_net": "net", "q_net_target.q_net": "net"})
    assert same(drawn(fresh.replay_buffer), drawn(model.replay_buffer))
    for key, tensor in model.policy.q_net.state_dict().items():
        assert torch.equal(fresh.policy.q_net.state_dict()[key], tensor)


def test_where_there_is_less_room_the_newest_rows_stay(tmp_path: Path) -> None:
    directory = export(loop(tmp_path / "runs", 60, buffer=Buffer(50)), tmp_path / "out")
    model = build("DQN", vector(), ACTIONS)
    report = neutral.into_sb3(directory, model)
    assert sorted(model.replay_buffer.rewards[:, 0].tolist()) == list(range(20, 60))
    assert "40 of 50 steps" in str(report)


def test_rows_of_one_environment_are_dealt_to_several_in_order(tmp_path: Path) -> None:
    directory = export(loop(tmp_path / "runs", 21, buffer=Buffer(50)), tmp_path / "out")
    model = build("DQN", vector(), ACTIONS, envs=2)
    report = neutral.into_sb3(directory, model)
    assert model.replay_buffer.rewards[:10].tolist() == [[n, n + 1] for n in range(1, 21, 2)]
    assert "the 1 oldest transition" in str(report)


class Queue:
    """A buffer that does not say which row is the oldest."""

    def __init__(self) -> None:
        self.obs = np.arange(12.0).reshape(4, 3).copy()
        self.next_obs = np.arange(24.0)[::2].reshape(4, 3, order="F")[:, :2]  # a view of what nobody holds
        self.actions, self.rewards = np.arange(4), np.ones(4)


def test_a_buffer_whose_oldest_row_is_not_known_is_given_as_it_is_stored_and_not_taken_over(
    tmp_path: Path,
) -> None:
    directory = export(loop(tmp_path / "runs", 1, queue=Queue()), tmp_path / "out")
    held = neutral.load(directory).replay["queue"]
    assert held.record.order == "as-stored"
    assert "queue/next_obs" in [left.what for left in neutral.load(directory).document.left]
    assert np.array_equal(held["obs"], Queue().obs)
    report = neutral.into_sb3(directory, build("DQN", vector(), ACTIONS))
    assert "which of its rows is the oldest is not known" in str(report)


def state(model: Any) -> dict[str, Any]:
    rows = model.replay_buffer
    return {
        **{k: v.numpy().copy() for k, v in model.policy.state_dict().items()},
        **{k: v.copy() for k, v in vars(rows).items() if isinstance(v, np.ndarray)},
        "pos": rows.pos,
    }


def standing(**settings: Any) -> Any:
    """A model whose buffer holds rows already."""
    model = build("DQN", settings.pop("observations", vector()), ACTIONS, **settings)
    model.replay_buffer.observations[:], model.replay_buffer.rewards[:] = 7, 7
    model.replay_buffer.pos = 3
    return model


UNFIT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "weights": ({}, StateMismatch, r"float32\[64, 4\] in the model, float32\[64, 3\] in the export"),
    "rows": ({"networks": {}}, StateMismatch, "obs: 4 numbers a row in the model, 3 in the export"),
    "a part": ({"networks": {"actor": "policy"}}, ConfigError, "no part 'actor'"),
    "a network": ({"networks": {"q_net": "net"}}, ConfigError, "no network 'net'"),
    "a column": ({"networks": {}, "fields": {"obs": "states"}}, ConfigError, "no column 'states'"),
}
NO_COLUMN: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "truncated of another size": (
        {"truncated": "obs"}, StateMismatch, "truncated: 1 numbers a row in the model, 3 in the export",
    ),
    "ends of another size": ({"terminated": "obs"}, StateMismatch, "terminated or dones: 1 numbers a row"),
    "rewards of another size": ({"rewards": "next_obs"}, StateMismatch, "rewards: 1 numbers a row"),
    "truncated that are no flags": (
        {"truncated": "rewards"}, StateMismatch, "truncated: numbers other than 0 and 1",
    ),
    "ends that are no flags": ({"dones": "actions", "terminated": "actions"}, StateMismatch, "other than 0 and 1"),
    "a role that nobody has": ({"observations": "obs"}, ConfigError, "names 'observations', which no buffer"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_leaves_the_model_as_it_was(case: str, thirty: Thirty) -> None:
    words, kind, message = UNFIT[case]
    wider = standing(observations=vector(4))
    before = state(wider)
    with pytest.raises(kind, match=message):
        neutral.into_sb3(thirty.directory, wider, **words)
    assert same([*state(wider).values()], [*before.values()])


@pytest.mark.parametrize("case", NO_COLUMN)
def test_a_column_that_is_not_what_it_is_named_leaves_the_model_as_it_was(case: str, thirty: Thirty) -> None:
    fields, kind, message = NO_COLUMN[case]
    model = standing()
    before = state(model)
    with pytest.raises(kind, match=message):
        neutral.into_sb3(thirty.directory, model, fields=fields)
    assert same([*state(model).values()], [*before.values()])
    neutral.into_sb3(thirty.directory, model)
    assert not same([*state(model).values()], [*before.values()])


def test_numbers_that_a_type_cannot_hold_leave_the_model_as_it_was(tmp_path: Path) -> None:
    class Halves(Buffer):
        def add(self, step: int) -> None:
            super().add(step)
            self.states[step] += 0.5

    directory = export(loop(tmp_path / "halves", 3, buffer=Halves(9)), tmp_path / "out")
    bytes_of = gym.spaces.Box(0, 255, (3,), np.uint8)
    model = standing(observations=bytes_of)
    before = state(model)
    with pytest.raises(StateMismatch, match="obs: uint8 in the model, and other numbers of float32"):
        neutral.into_sb3(directory, model)
    assert same([*state(model).values()], [*before.values()])
    whole = export(loop(tmp_path / "whole", 3, buffer=Buffer(9)), tmp_path / "whole-out")
    neutral.into_sb3(whole, model)
    assert model.replay_buffer.observations[:3, 0, 0].tolist() == [0, 1, 2]


def test_rows_that_do_not_follow_one_another_are_no_rows_of_a_buffer_with_one_observation_for_two(
    tmp_path: Path,
) -> None:
    one_for_two = {
        "optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }  # fmt: skip
    rows = export(loop(tmp_path / "runs", 21, buffer=Buffer(50)), tmp_path / "out")
    model = build("DQN", vector(), ACTIONS, **one_for_two)
    neutral.into_sb3(rows, model)
    assert model.replay_buffer.observations[:22, 0, 0].tolist() == list(range(22))
    two = standing(envs=2, **one_for_two)  # each gets every other row
    before = state(two)
    with pytest.raises(StateMismatch, match="next_obs: not the obs of the row after it"):
        neutral.into_sb3(rows, two)
    assert same([*state(two).values()], [*before.values()])


def test_another_algorithm_is_named_where_weights_do_not_fit(thirty: Thirty) -> None:
    with pytest.raises(StateMismatch, match="A DQN has trained it, and the model is a PPO: build a DQN"):
        neutral.into_sb3(thirty.directory, build("PPO", vector(), ACTIONS))


def test_two_networks_for_one_part_are_refused(thirty: Thirty) -> None:
    model = standing()
    before = state(model)
    with pytest.raises(ConfigError, match=r"gives weights of model\.policy\.q_net\.q_net twice"):
        neutral.into_sb3(
            thirty.directory,
            model,
            networks={"q_net": "policy:q_net", "q_net.q_net": "policy:q_net_target.q_net"},
        )
    assert same([*state(model).values()], [*before.values()])


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    model: Any = None
    with pytest.raises(ConfigError) as caught:
        neutral.into_sb3(tmp_path, model)
    assert caught.value.hint == "Run: pip install stable-baselines3"

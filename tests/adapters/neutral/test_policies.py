"""What an exported policy does is what SB3's own does, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.adapters.neutral.conftest import Thirty
from tests.adapters.neutral.exported import Toy, bounded, build, export, observations_of, train, vector
from unbroken import neutral
from unbroken.errors import ConfigError, CorruptObject

spaces = gym.spaces
IMAGES = spaces.Box(0, 255, (3, 36, 36), np.uint8)

TRAININGS: dict[str, tuple[str, gym.Space[Any], gym.Space[Any], dict[str, Any]]] = {
    "ppo discrete": ("PPO", vector(), spaces.Discrete(4), {}),
    "a2c bounded": ("A2C", vector(), bounded(), {}),
    "ppo squashed by gSDE": (
        "PPO", vector(), bounded(), {"use_sde": True, "policy_kwargs": {"squash_output": True}},
    ),
    "ppo several actions": ("PPO", vector(), spaces.MultiDiscrete([2, 5, 3]), {}),
    "ppo bits": ("PPO", vector(), spaces.MultiBinary(3), {}),
    "ppo numbered observations": ("PPO", spaces.Discrete(6), spaces.Discrete(3), {}),
    "a2c several numbers": ("A2C", spaces.MultiDiscrete([3, 4]), spaces.Discrete(3), {}),
    "ppo images": ("PPO", IMAGES, spaces.Box(-1e6, 1e6, (2,)), {"policy": "CnnPolicy"}),
    "ppo layers of its own": (
        "PPO", vector(), spaces.Discrete(3),
        {"policy_kwargs": {"net_arch": {"pi": [5, 4], "vf": [6]}, "activation_fn": torch.nn.ELU, "share_features_extractor": False}},
    ),
    "ppo normalized": ("PPO", vector(), spaces.Discrete(4), {"normalize": True}),
    "dqn": ("DQN", vector(), spaces.Discrete(3), {}),
    "qrdqn": ("QRDQN", vector(), spaces.Discrete(3), {"policy_kwargs": {"n_quantiles": 7}}),
    "sac": ("SAC", vector(), bounded(), {}),
    "sac with gSDE": ("SAC", vector(), bounded(), {"use_sde": True}),
    "td3": ("TD3", vector(), bounded(), {}),
    "ddpg normalized": ("DDPG", vector(), bounded(1), {"normalize": True}),
}  # fmt: skip


IN_EVERY_TEST = {"ppo images"}
"""A DQN acts in the tests below, and a normalized SAC in those of round trips."""


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(name, marks=() if name in IN_EVERY_TEST else pytest.mark.exactness, id=name)
        for name in TRAININGS
    ],
)
def test_the_actions_are_those_of_the_policy_that_was_trained(training: str, tmp_path: Path) -> None:
    name, observations, actions, settings = TRAININGS[training]
    model = build(name, observations, actions, **settings)
    directory = export(train(model, 24, tmp_path), tmp_path / "out")
    policy = neutral.load_policy(directory)
    some = observations_of(observations, 9)
    outer = model.get_vec_normalize_env()
    seen = some if outer is None else outer.normalize_obs(some)
    if outer is not None:
        assert np.array_equal(policy.normalized(some), seen)
        assert not np.array_equal(seen, some)
    expected, _ = model.predict(seen, deterministic=True)
    taken = policy(some)
    assert np.array_equal(taken, expected)
    assert np.array_equal(policy(some[3]), model.predict(seen[3], deterministic=True)[0])
    assert len(np.unique(expected, axis=0)) > 1
    if outer is not None:
        assert not np.array_equal(policy(some, normalize=False), expected)


@pytest.mark.parametrize("name", ["PPO", pytest.param("A2C", marks=pytest.mark.exactness)])
def test_values_are_those_of_the_critic_that_was_trained(name: str, tmp_path: Path) -> None:
    model = build(name, vector(), bounded())
    directory = export(train(model, 16, tmp_path), tmp_path / "out")
    some = torch.as_tensor(observations_of(vector(), 9))
    with torch.no_grad():
        expected = model.policy.predict_values(some)
        assert torch.equal(neutral.load_value(directory)(some), expected)
    assert len(expected.unique()) == 9


def test_the_weights_are_plain_arrays_under_the_names_of_the_policy(thirty: Thirty) -> None:
    found = neutral.load(thirty.directory)
    expected = thirty.model.policy.state_dict()
    assert found.step == 32
    assert [*found.weights("policy")] == [*expected]
    for key, tensor in expected.items():
        assert np.array_equal(found.weights()[key], tensor.numpy())
    assert [network.name for network in found.document.networks] == ["policy"]


def test_the_export_says_by_safetensors_alone_what_stands_in_it(thirty: Thirty) -> None:
    from safetensors.numpy import load_file

    weights = load_file(thirty.directory / "weights/policy.safetensors")
    bias = thirty.model.policy.q_net.q_net[4].bias.detach().numpy()
    assert np.array_equal(weights["q_net.q_net.4.bias"], bias)
    obs = np.load(thirty.directory / "replay/replay_buffer/obs.npy", mmap_mode="r")
    assert np.array_equal(obs, thirty.model.replay_buffer.observations[:32])


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(batch) * self.scale
        return out


def test_a_policy_whose_forward_stands_in_the_program_has_weights_and_parts_and_says_why_it_does_not_act(
    tmp_path: Path,
) -> None:
    from unbroken import Run

    net = Own()
    with Run(tmp_path / "runs", every=100) as run:
        run.track(net=net)
        for _ in run.steps(1):
            pass
    directory = export(tmp_path / "runs", tmp_path / "out")
    with pytest.raises(ConfigError, match="what Own does with an observation stands in the program"):
        neutral.load_policy(directory)
    some = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(neutral.load_network(directory)(some), net.body(some))
    with pytest.raises(ConfigError, match="net has no part 'head'"):
        neutral.load_network(directory, "net", part="head")
    other = Own()
    other.load_state_dict(neutral.load(directory).state_dict("net"))
    assert torch.equal(other(some), net(some))


def test_observations_of_another_shape_are_refused(thirty: Thirty) -> None:
    policy = neutral.load_policy(thirty.directory)
    with pytest.raises(ConfigError, match=r"observations of shape \[3\], and got \[2, 4\]"):
        policy(np.zeros((2, 4)))


def test_a_row_of_a_replay_buffer_is_acted_on_without_a_warning(thirty: Thirty) -> None:
    rows = neutral.load(thirty.directory).replay["replay_buffer"]
    policy = neutral.load_policy(thirty.directory)
    assert not rows["obs"].flags.writeable
    assert policy(rows["obs"][0, 0]) == policy(np.array(rows["obs"][0, 0]))
    taken = policy(rows["obs"][:, 0])
    assert np.array_equal(taken, thirty.model.predict(np.array(rows["obs"][:, 0]), deterministic=True)[0])
    assert len(np.unique(taken)) > 1


def test_a_document_that_contradicts_its_network_is_one_clear_error(thirty: Thirty, tmp_path: Path) -> None:
    shutil.copytree(thirty.directory, tmp_path / "out")
    document = json.loads((tmp_path / "out/neutral.json").read_text())
    document["observation_space"]["shape"] = []
    (tmp_path / "out/neutral.json").write_text(json.dumps(document))
    policy = neutral.load_policy(tmp_path / "out")
    for observation in (np.float32(1), np.ones(3, np.float32)):
        with pytest.raises(CorruptObject, match=r"fails on observations of shape \[\]"):
            policy(observation)


def test_a_dict_of_observations_leaves_the_way_open_and_says_so(tmp_path: Path) -> None:
    observations = gym.spaces.Dict({"a": vector(), "b": gym.spaces.Discrete(3)})
    model = build("PPO", observations, gym.spaces.Discrete(2), policy="MultiInputPolicy")
    found = neutral.load(export(train(model, 16, tmp_path), tmp_path / "out"))
    assert found.document.act is None
    assert found.document.why_no_act == (
        "what MultiInputActorCriticPolicy does with an observation stands in the program"
    )
    assert found.document.observation_space is not None
    assert [*found.document.observation_space.spaces] == ["a", "b"]
    assert [*found.weights()] == [*model.policy.state_dict()]
    assert isinstance(model.env.envs[0].unwrapped, Toy)

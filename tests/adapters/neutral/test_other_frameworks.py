"""What RLlib and Lightning have trained, in a loop of one's own and in SB3."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tests.adapters.neutral.exported import build, export, vector
from unbroken import neutral
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings


def rllib_module(actions: gym.Space[Any], **config: Any) -> Any:
    """RLlib's own PPO module, as its learner has it."""
    catalogs = pytest.importorskip("ray.rllib.algorithms.ppo.ppo_catalog")
    modules = pytest.importorskip("ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module")
    torch.manual_seed(4)
    module = modules.DefaultPPOTorchRLModule(
        observation_space=vector(), action_space=actions, catalog_class=catalogs.PPOCatalog,
        model_config={"fcnet_hiddens": [16, 16], "head_fcnet_hiddens": [8], **config},
    )  # fmt: skip
    with torch.no_grad():  # a fresh policy does nearly the same whatever it sees
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.8)
    return module


class Learner:
    """Stands where the learner does."""

    def __init__(self, module: Any) -> None:
        self._module = SimpleNamespace(_rl_modules={"default_policy": module})


def saved(root: Path, module: Any) -> Path:
    learner = Learner(module)
    with CheckpointEngine(
        GraftSource({"learner": learner}, policy_of_loaded()), Settings(root=root, job="run"), environment={}
    ) as engine:
        engine.resume()
    return root


@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.exactness, id="False"), True])
def test_a_policy_of_rllib_acts_in_a_loop_of_ones_own(shared: bool, tmp_path: Path) -> None:
    module = rllib_module(gym.spaces.Discrete(4), vf_share_layers=shared)
    directory = export(saved(tmp_path / "runs", module), tmp_path / "out")
    policy = neutral.load_policy(directory)
    some = torch.randn(9, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = module.forward_inference({"obs": some})["action_dist_inputs"]
        values = module.compute_values({"obs": some})
    assert torch.equal(policy.network(some), expected)
    assert np.array_equal(policy(some.numpy()), expected.argmax(dim=1).numpy())
    assert torch.equal(neutral.load_value(directory)(some).squeeze(-1), values)
    assert len(np.unique(policy(some.numpy()))) > 1


@pytest.mark.exactness
def test_a_policy_of_rllib_goes_on_in_sb3(tmp_path: Path) -> None:
    module = rllib_module(gym.spaces.Discrete(4), vf_share_layers=False)
    directory = export(saved(tmp_path / "runs", module), tmp_path / "out")
    model = build(
        "PPO", vector(), gym.spaces.Discrete(4),
        policy_kwargs={"net_arch": {"pi": [16, 16, 8], "vf": [16, 16, 8]}, "activation_fn": nn.Tanh},
    )  # fmt: skip
    report = neutral.into_sb3(directory, model)
    assert "weights: say which go where" in str(report)
    some = torch.randn(9, 3, generator=torch.Generator().manual_seed(2))
    neutral.into_sb3(
        directory,
        model,
        networks={
            "mlp_extractor.policy_net.0": "default_policy:encoder.actor_encoder.net.mlp.0",
            "mlp_extractor.policy_net.2": "default_policy:encoder.actor_encoder.net.mlp.2",
        },
    )
    with torch.no_grad():
        body = module.encoder.actor_encoder.net.mlp[:4](some)
        assert torch.equal(model.policy.mlp_extractor.policy_net[:4](some), body)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target = nn.Sequential(nn.Linear(3, 2))


@pytest.mark.exactness
@pytest.mark.filterwarnings(
    "ignore"
)  # Lightning announces its own deprecations, and what it would like to have
def test_a_module_of_lightning_gives_its_networks_by_their_names(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from torch.utils.data import DataLoader

    from unbroken.lightning import CheckpointCallback

    class Agent(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.nets = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.nets.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Agent()
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[CheckpointCallback(tmp_path / "runs", every=100)],
    )  # fmt: skip
    batches: Any = torch.ones(8, 3)
    trainer.fit(module, DataLoader(batches, batch_size=2))
    directory = export(tmp_path / "runs", tmp_path / "out")
    found = neutral.load(directory)
    assert found.document.source.framework == "lightning"
    assert [*found.network().chains] == ["nets.net", "nets.target"]
    some = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.equal(neutral.load_network(directory, part="nets.net")(some), module.nets.net(some))
    model = build("DQN", vector(), gym.spaces.Discrete(2))
    neutral.into_sb3(directory, model, networks={"q_net.q_net": "module:nets.net"})
    with torch.no_grad():
        assert torch.equal(model.policy.q_net(some), module.nets.net(some))

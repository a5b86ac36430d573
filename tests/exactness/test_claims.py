"""What docs/comparison.md says of other libraries' checkpoints, asked of the libraries themselves."""

from __future__ import annotations

import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

pytestmark = pytest.mark.exactness


def test_a_checkpoint_of_stable_baselines_has_policy_and_optimizer_and_no_world(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", buffer_size=100, learning_starts=10)
    model.learn(48)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as file:
        assert {"policy.pth", "policy.optimizer.pth", "data"} <= {*file.namelist()}
    again = sb3.DQN.load(tmp_path / "model.zip", device="cpu")
    assert again.num_timesteps == 48
    assert again.env is None
    assert again.replay_buffer.size() == 0
    assert model.replay_buffer.size() == 48


def test_a_learner_of_rllib_tells_of_module_optimizer_and_metrics_and_of_no_coefficient() -> None:
    pytest.importorskip("ray.rllib")
    ppo: Any = import_module("ray.rllib.algorithms.ppo")
    config = ppo.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).training(kl_coeff=0.2)
    space = gymnasium.make("CartPole-v1")
    learner = config.build_learner(env=space)
    learner.curr_kl_coeffs_per_module["default_policy"].fill_(0.7)
    state = learner.get_state()
    assert {"rl_module", "optimizer", "metrics_logger"} <= {*state}
    other = config.build_learner(env=space)
    other.set_state(state)
    assert float(other.curr_kl_coeffs_per_module["default_policy"]) == pytest.approx(0.2)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_checkpoint_of_lightning_has_no_environment_and_no_generator(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    pl: Any = import_module("lightning.pytorch")

    class Agent(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.policy = torch.nn.Linear(4, 2)
            self.env = gymnasium.make("CartPole-v1")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.policy(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    trainer = pl.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    data: Any = torch.utils.data
    trainer.fit(Agent(), data.DataLoader(torch.zeros(8, 4), batch_size=4))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    found = torch.load(tmp_path / "a.ckpt", weights_only=False)
    assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "global_step"} <= {
        *found
    }
    assert {*found["state_dict"]} == {"policy.weight", "policy.bias"}
    assert not [name for name in found if "rng" in name or "env" in name]


def test_torchrl_takes_an_environment_and_saves_nothing_of_where_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("torchrl")
    checkpoint: Any = import_module("torchrl.checkpoint")
    envs: Any = import_module("torchrl.envs")
    env = envs.GymEnv("CartPole-v1")
    env.set_seed(0)
    env.reset()
    env.rand_step()
    checkpoint.Checkpoint(env=env).save(tmp_path / "a")
    other = envs.GymEnv("CartPole-v1")
    other.set_seed(1)
    other.reset()
    before = tuple(other._env.unwrapped.state)
    checkpoint.Checkpoint(env=other).load(tmp_path / "a")
    assert tuple(other._env.unwrapped.state) == before
    assert before != tuple(env._env.unwrapped.state)

"""The trainings: each with the checkpoint of one library, and some with ours.

All are small: an end that differs needs no learning. Steps are those of the one environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn

from exactness.peers.trace import Place, seed_all

TOTAL, HALF = 1_024, 500
EPISODES = 40


def sb3_ppo(place: Place) -> None:
    """Save: the zip of Stable-Baselines3's own CheckpointCallback. Resume: `PPO.load`, `reset_num_timesteps=False`."""
    _sb3("PPO", place, n_steps=64)


def sb3_dqn(place: Place) -> None:
    """The same with `save_replay_buffer`, loaded by `load_replay_buffer`."""
    _sb3("DQN", place, learning_starts=100, buffer_size=5_000)


def _sb3(name: str, place: Place, **options: Any) -> None:
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback

    class Leave(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == HALF:
                place.leave(HALF)
            return True

    algorithm: Any = getattr(stable_baselines3, name)
    env = place.env("CartPole-v1")
    if place.stage == "second":
        model = algorithm.load(place.saved / f"rl_model_{HALF}_steps.zip", env=env, device="cpu")
        if name == "DQN":
            model.load_replay_buffer(place.saved / f"rl_model_replay_buffer_{HALF}_steps.pkl")
        model.learn(TOTAL - HALF, reset_num_timesteps=False)
    else:
        model = algorithm("MlpPolicy", env, seed=0, device="cpu", **options)
        save = CheckpointCallback(HALF, str(place.saved), save_replay_buffer=name == "DQN")
        model.learn(TOTAL, callback=CallbackList([save, Leave()]) if place.stage == "first" else None)
    place.end(model.policy.parameters())


def sb3_ppo_unbroken(place: Place) -> None:
    """Save: ours. The process is ended by SIGKILL some steps after it."""
    _sb3_unbroken("PPO", place, n_steps=64)


def sb3_dqn_unbroken(place: Place) -> None:
    """The same."""
    _sb3_unbroken("DQN", place, learning_starts=100, buffer_size=5_000)


def _sb3_unbroken(name: str, place: Place, **options: Any) -> None:
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback

    from unbroken.sb3 import CheckpointCallback

    checkpoints = CheckpointCallback(HALF, place.folder / "runs" / place.stage.replace("second", "first"))

    class Die(BaseCallback):
        def _on_step(self) -> bool:
            if place.stage == "first" and self.num_timesteps == HALF + 20:
                _die_with(place.folder / "runs" / "first" / "rl_model", HALF)
            return True

    algorithm: Any = getattr(stable_baselines3, name)
    model = algorithm("MlpPolicy", place.env("CartPole-v1"), seed=0, device="cpu", **options)
    model.learn(TOTAL, callback=[checkpoints, Die()])
    place.end(model.policy.parameters())


PATIENCE, PAUSE = 120.0, 0.02


def _die_with(run: Path, step: int) -> None:
    """End by SIGKILL once a checkpoint of this step or a later one is committed.

    Raises:
        TimeoutError: none was committed within `PATIENCE` seconds.
    """
    from unbroken.repo.repository import Repository

    repository = Repository.open(run.parent, run.name)
    deadline = time.monotonic() + PATIENCE
    while repository.commits()[0].step < step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run}: no checkpoint of step {step} within {PATIENCE:.0f} s")
        time.sleep(PAUSE)
    os.kill(os.getpid(), signal.SIGKILL)


def policy_of() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))


def chances(policy: nn.Module, seen: torch.Tensor) -> Any:
    """Return what the policy would do."""
    distributions: Any = torch.distributions
    return distributions.Categorical(logits=policy(seen))


def episode(
    env: gymnasium.Env[Any, Any], policy: nn.Module
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Play an episode; return observations, actions and returns."""
    seen: list[torch.Tensor] = []
    actions: list[torch.Tensor] = []
    rewards: list[float] = []
    over, (obs, _) = False, env.reset()
    while not over:
        seen.append(torch.as_tensor(obs))
        with torch.no_grad():
            actions.append(chances(policy, seen[-1]).sample())
        obs, reward, terminated, truncated, _ = env.step(actions[-1].item())
        rewards.append(float(reward))
        over = terminated or truncated
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(seen), torch.stack(actions), returns


def loss_of(policy: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    seen, actions, returns = batch
    loss: torch.Tensor = -(chances(policy, seen).log_prob(actions) * (returns - returns.mean())).mean()
    return loss


class Loop:
    """REINFORCE on CartPole in a loop of one's own, an episode at a time: what its parts are is plain to see."""

    def __init__(self, place: Place) -> None:
        seed_all()
        self.place = place
        self.env = place.env("CartPole-v1")
        self.policy = policy_of()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.env.reset(seed=0)
        self.steps = 0

    def iterate(self) -> None:
        batch = episode(self.env, self.policy)
        self.steps += len(batch[0])
        self.optimizer.zero_grad()
        loss: Any = loss_of(self.policy, batch)
        loss.backward()
        self.optimizer.step()

    def go(self, save: Callable[[Loop], None], load: Callable[[Loop], None]) -> None:
        first = 0
        if self.place.stage == "second":
            load(self)
            first = EPISODES // 2
        for iteration in range(first, EPISODES):
            if self.place.stage == "first" and iteration == EPISODES // 2:
                save(self)
                self.place.leave(self.steps)
            self.iterate()
        self.place.end(self.policy.parameters())


def dcp(place: Place) -> None:
    """Save: `torch.distributed.checkpoint.save` of model, optimizer and PyTorch's generator."""
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def state(loop: Loop) -> dict[str, Any]:
        weights, moments = get_state_dict(loop.policy, loop.optimizer)
        return {"model": weights, "optimizer": moments, "generator": torch.get_rng_state()}

    def save(loop: Loop) -> None:
        state_dict_saver.save(state(loop), checkpoint_id=place.saved)

    def load(loop: Loop) -> None:
        saved = state(loop)
        state_dict_loader.load(saved, checkpoint_id=place.saved)
        set_state_dict(
            loop.policy, loop.optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
        torch.set_rng_state(saved["generator"])

    Loop(place).go(save, load)


def orbax(place: Place) -> None:
    """Save: Orbax's `PyTreeCheckpointer` of model, optimizer and PyTorch's generator, as arrays."""
    from orbax import checkpoint

    def state(loop: Loop) -> dict[str, Any]:
        moments = loop.optimizer.state_dict()["state"]
        return {
            "model": {name: value.numpy() for name, value in loop.policy.state_dict().items()},
            "optimizer": {
                str(number): {name: value.numpy() for name, value in entry.items()}
                for number, entry in moments.items()
            },
            "generator": torch.get_rng_state().numpy(),
        }

    def save(loop: Loop) -> None:
        checkpoint.PyTreeCheckpointer().save(place.saved.absolute(), state(loop))

    def load(loop: Loop) -> None:
        saved: Any = checkpoint.PyTreeCheckpointer().restore(place.saved.absolute())
        loop.policy.load_state_dict({name: torch.tensor(value) for name, value in saved["model"].items()})
        whole = loop.optimizer.state_dict()
        whole["state"] = {
            int(number): {name: torch.tensor(value) for name, value in entry.items()}
            for number, entry in saved["optimizer"].items()
        }
        loop.optimizer.load_state_dict(whole)
        torch.set_rng_state(torch.tensor(saved["generator"]))

    Loop(place).go(save, load)


def torchrl(place: Place) -> None:
    """Save: TorchRL's `Checkpoint` of policy, optimizer and `GlobalRNGState`. The loop is the same."""
    from torchrl.checkpoint import Checkpoint, GlobalRNGState

    def checkpoint(loop: Loop) -> Any:
        return Checkpoint(policy=loop.policy, optimizer=loop.optimizer, generators=GlobalRNGState())

    def save(loop: Loop) -> None:
        checkpoint(loop).save(place.saved)

    def load(loop: Loop) -> None:
        checkpoint(loop).load(place.saved)

    Loop(place).go(save, load)


def loop_unbroken(place: Place) -> None:
    """Save: ours. The process is ended by SIGKILL an episode after it."""
    import unbroken

    loop = Loop(place)
    root = place.folder / "runs" / place.stage.replace("second", "first")
    run = unbroken.Run(root, job="loop", every=EPISODES // 2, quiet=True)
    run.track(policy=loop.policy, optimizer=loop.optimizer, env=loop.env)
    for iteration in run.steps(EPISODES):
        if place.stage == "first" and iteration == EPISODES // 2 + 1:
            run.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        loop.iterate()
    place.end(loop.policy.parameters())


def lightning(place: Place) -> None:
    """Save: Lightning's own checkpoint, by `trainer.save_checkpoint`. Resume: `fit(ckpt_path=…)`."""
    trainer, agent = _lightning(place, [])
    trainer.fit(
        agent, ckpt_path=place.saved / "half.ckpt" if place.stage == "second" else None, weights_only=False
    )
    place.end(agent.policy.parameters())


def lightning_unbroken(place: Place) -> None:
    """Save: ours. The process is ended by SIGKILL a batch after it."""
    from unbroken.lightning import CheckpointCallback

    root = place.folder / "runs" / place.stage.replace("second", "first")
    trainer, agent = _lightning(
        place, [CheckpointCallback(root, job="agent", every=EPISODES // 2)], ours=True
    )
    trainer.fit(agent)
    place.end(agent.policy.parameters())


def _lightning(place: Place, callbacks: list[Any], *, ours: bool = False) -> tuple[Any, Any]:
    import lightning as pl
    from torch.utils.data import DataLoader, IterableDataset

    class Episodes(IterableDataset[Any]):
        def __init__(self, agent: Agent) -> None:
            self.agent = agent

        def __iter__(self) -> Iterator[Any]:
            while True:
                self.agent.before = self.agent.steps
                batch = episode(self.agent.env, self.agent.policy)
                self.agent.steps += len(batch[0])
                yield batch

    class Agent(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy_of()
            self.env = place.env("CartPole-v1")
            self.env.reset(seed=0)
            self.steps = self.before = 0
            # `before`: steps until the batch that comes next, which Lightning has fetched already.

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return loss_of(self.policy, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

        def train_dataloader(self) -> Any:
            return DataLoader(Episodes(self), batch_size=None)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if not ours and place.stage == "first" and self.global_step == EPISODES // 2:
                self.trainer.save_checkpoint(place.saved / "half.ckpt")
                place.leave(self.before)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if ours and place.stage == "second" and not place.resumed_at.exists():
                # One episode was fetched before anything was restored, and one since.
                place.restored(self.before, self.steps - self.before)
            if ours and place.stage == "first" and self.global_step == EPISODES // 2 + 2:
                _die_with(place.folder / "runs" / "first" / "agent", EPISODES // 2)

    seed_all()
    trainer = pl.Trainer(
        max_steps=EPISODES, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=callbacks,
    )  # fmt: skip
    return trainer, Agent()


def rllib(place: Place) -> None:
    """Save: `Algorithm.save_to_path` at the end of an iteration. Resume: `restore_from_path`."""
    algo = _rllib(place, None)
    if place.stage == "second":
        algo.restore_from_path(str(place.saved.absolute()))
    while algo.training_iteration < 6:
        algo.train()
        if place.stage == "first" and algo.training_iteration == 3:
            algo.save_to_path(str(place.saved.absolute()))
            place.leave(len(place.steps.read_text().splitlines()))
    place.end(algo.get_module().state_dict().values())


def rllib_unbroken(place: Place) -> None:
    """Save: ours. Everything is ended by SIGKILL in the next iteration."""
    import unbroken.rllib

    root = place.folder / "runs" / place.stage.replace("second", "first")
    algo = _rllib(place, unbroken.rllib.checkpoints(str(root), job="algo", every=600))
    while algo.training_iteration < 6:
        algo.train()
        if place.stage == "first" and algo.training_iteration == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    place.end(algo.get_module().state_dict().values())


def _rllib(place: Place, callbacks: Any) -> Any:
    import ray
    from ray.rllib.algorithms import ppo
    from ray.tune.registry import register_env

    ray.init(num_cpus=1, include_dashboard=False)
    register_env("traced", lambda _: place.env("CartPole-v1"))
    make: Any = ppo.PPOConfig
    config = (
        make()
        .environment("traced")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=200, minibatch_size=100, num_epochs=2)
        .debugging(seed=0)
        .reporting(min_time_s_per_iteration=0)
    )
    if callbacks is not None:
        config = config.callbacks(callbacks)
    return config.build_algo()


ALL: dict[str, Callable[[Place], None]] = {
    function.__name__: function
    for function in (
        sb3_ppo, sb3_ppo_unbroken, sb3_dqn, sb3_dqn_unbroken, rllib, rllib_unbroken, lightning, lightning_unbroken, torchrl,
        dcp, orbax, loop_unbroken,
    )
}  # fmt: skip

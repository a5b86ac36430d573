"""Trainings on workers of Ray Train, run one after the other by one driver. Run as a script.

`JSON…`: each argument is one training, the fields of `Training`. Every worker has an environment, a buffer and
generators of its own; the model is data-parallel. What each worker holds at the end lies beside the run.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import ray.train
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from torch import nn

import unbroken.ray_train
from unbroken.errors import RankMissing
from unbroken.repo.repository import Repository

PATIENCE, IMPATIENCE = 300.0, 10.0
"""Seconds that workers of a plain training wait for each other at a clean point: ever, and for one that never comes."""


@dataclass
class Training:
    """One training. Once each: a worker kills itself at `kill` (rank and step), rank 0 at `kill_untold` when the
    checkpoint of that step is durable and not reported, rank 0 kills the driver at `kill_driver`; rank 1 of a plain
    training never comes out of step `stuck`.

    `cold` is what is left as new after a resume."""

    root: str
    steps: int = 24
    every: int = 5
    workers: int = 2
    name: str = "run"
    kill: Sequence[int] = ()
    kill_untold: int | None = None
    kill_driver: int | None = None
    stuck: int | None = None
    cold: str = ""
    keep_last: int = 5
    plain: bool = False
    """Without torch: no process group, a clock decides about saves."""


class Buffer:
    """Transitions, oldest overwritten first."""

    def __init__(self, size: int) -> None:
        self.rows = np.zeros((size, 10), np.float32)
        self.added = 0

    def add(self, row: Any) -> None:
        self.rows[self.added % len(self.rows)] = row
        self.added += 1

    def sample(self, count: int, rng: np.random.Generator) -> torch.Tensor:
        return torch.from_numpy(self.rows[rng.integers(min(self.added, len(self.rows)), size=count)])


class Normalizer(nn.Module):
    """Takes the mean of all that it has seen from what it sees: a buffer that each rank moves by its own data."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean += 0.01 * (values.mean(0) - self.mean)
        return values - self.mean


def train(config: dict[str, Any]) -> None:
    about = Training(**config["training"])
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(1)
    random.seed(rank)
    np.random.seed(10 + rank)  # noqa: NPY002
    torch.manual_seed(20 + rank)
    rng = np.random.default_rng(30 + rank)
    env = gym.make("CartPole-v1")
    buffer = Buffer(64)
    layers = (Normalizer(4), nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    model = prepare_model(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    new = copy.deepcopy((buffer, optimizer.state_dict()))

    ckpt = unbroken.ray_train.start(
        about.root,
        every=about.every,
        keep_last=about.keep_last,
        sync_timeout=60,
        start_timeout=120,
        model=model,
        optimizer=optimizer,
        env=env,
        buffer=buffer,
        rng=rng,
    )
    ckpt.vars.obs, _ = env.reset(seed=40 + rank)
    ckpt.vars.rollouts = 0
    for step in ckpt.steps(about.steps):
        resumed = ckpt.resumed
        assert resumed is not None
        if about.cold and resumed.step == step:
            leave_cold(about.cold, ckpt, new, rank)
        for turn in range(8):
            greedy = model(torch.as_tensor(ckpt.vars.obs)[None]).argmax().item()
            action = greedy if rng.random() < 0.8 else random.randrange(2)
            following, reward, terminated, truncated, _ = env.step(action)
            noise = np.random.random()  # noqa: NPY002
            buffer.add([*ckpt.vars.obs, action, float(reward) * (0.9 + 0.1 * noise), *following])
            ckpt.vars.obs = following
            if turn == 4:
                perish(about, rank, step, config["driver"])
            if terminated or truncated:
                ckpt.vars.obs, _ = env.reset()
                ckpt.vars.rollouts += 1
                ckpt.record(episodes=1)
        batch = buffer.sample(16, rng)
        with torch.no_grad():
            target = batch[:, 5] + 0.9 * model(batch[:, 6:]).max(1).values
        value = model(batch[:, :4]).gather(1, batch[:, 4:5].long())[:, 0]
        loss = nn.functional.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if resumed.step == step and resumed.restored:
            found = {"all": ckpt.worker_status, "own": dict(ckpt.status), "text": resumed.text}
            write(about, f"resumed.{rank}of{about.workers}", found)
        ckpt.report(
            {"loss": loss.item()},
            epoch=step // 8,
            env_seed=40 + rank,
            queue_position=buffer.added % 64,
            rollouts=ckpt.vars.rollouts,
        )
        # So that each save is made when it is due: while one is being written, the next is left out.
        ckpt.wait()
    weights = [parameter.tolist() for parameter in model.parameters()]
    draws = [random.random(), np.random.random(), torch.rand(1).item(), rng.random()]  # noqa: NPY002
    draws += env.reset()[0].tolist()
    write(about, f"end.{rank}", {"weights": weights, "draws": draws, "episodes": ckpt.episodes})


def train_plain(config: dict[str, Any]) -> None:
    about = Training(**config["training"])
    rank = ray.train.get_context().get_world_rank()
    rng = np.random.default_rng(rank)
    total = np.zeros(2)
    patience = IMPATIENCE if about.stuck is not None and not made(about, "stuck").exists() else PATIENCE
    ckpt = unbroken.ray_train.start(
        every=unbroken.ray_train.Every(seconds=0.02), step_timeout=patience, total=total, rng=rng
    )
    try:
        for step in ckpt.steps(about.steps):
            total += rng.normal(size=2) * (step + 1)
            perish(about, rank, step, config["driver"])
            ckpt.report({"step": step})
            ckpt.wait()
            if about.stuck == step and rank == 1 and once(about, "stuck"):
                threading.Event().wait()  # for Ray, which ends this worker when the other one has failed
    except RankMissing as error:
        write(about, f"missing.{rank}", str(error))
        raise
    assert ckpt.resumed is not None
    write(about, f"end.{rank}", {"total": total.tolist(), "draw": rng.random(), "from": ckpt.resumed.step})


def leave_cold(part: str, ckpt: Any, new: Any, rank: int) -> None:
    objects = ckpt._tracked.objects
    buffer, optimizer = new
    if part == "buffer":
        vars(objects["buffer"]).update(vars(buffer))
    elif part == "optimizer":
        objects["optimizer"].load_state_dict(optimizer)
    elif part == "env":
        ckpt.vars.obs, _ = objects["env"].reset(seed=40 + rank)
    elif part == "generators":
        objects["rng"].bit_generator.state = np.random.default_rng(30 + rank).bit_generator.state
        torch.manual_seed(20 + rank)
    elif part == "normalizer":
        objects["model"][0].mean.zero_()


def perish(about: Training, rank: int, step: int, driver: int) -> None:
    if list(about.kill) == [rank, step] and once(about, "kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if about.kill_untold == step and rank == 0 and once(about, "kill_untold"):
        repository = Repository.open(about.root, Path(about.root).name)
        while repository.commits()[0].step != step:  # the other rank waits for this one's gradients
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if about.kill_driver == step and rank == 0 and once(about, "kill_driver"):
        os.kill(driver, signal.SIGKILL)
        threading.Event().wait()  # for Ray, which ends with its driver and this worker with it


def once(about: Training, what: str) -> bool:
    mark = made(about, what)
    if mark.exists():
        return False
    mark.touch()
    return True


def made(about: Training, what: str) -> Path:
    """Return the file that says that something was done."""
    return Path(f"{about.root}.{what}")


def write(about: Training, name: str, found: Any) -> None:
    Path(f"{about.root}.{name}.json").write_text(json.dumps(found))


def main(arguments: list[str]) -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    for argument in arguments:
        about = Training(**json.loads(argument))
        trainer = DataParallelTrainer if about.plain else TorchTrainer
        result = trainer(
            train_plain if about.plain else train,
            train_loop_config={"training": vars(about), "driver": os.getpid()},
            scaling_config=ScalingConfig(num_workers=about.workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                name=about.name,
                storage_path=f"{about.root}.ray",
                failure_config=FailureConfig(max_failures=2),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        ).fit()
        assert result.checkpoint is not None
        pointer = unbroken.ray_train.read_pointer(result.checkpoint.path)
        write(about, "result", {"step": pointer.step, "metrics": sorted(result.metrics or ())})


if __name__ == "__main__":
    main(sys.argv[1:])

"""One rank of a training under FSDP2: a model that the ranks share in shards, an environment for each.

    fsdp_script.py RANK SIZE MEETING ROOT [--kill STEP] [--cold PART] [--seed N]

Goes on from what ROOT holds, through the coordinator. `--kill`: rank 1 is killed before this step. `--cold`: a part
starts as the program built it, in spite of the checkpoint. Prints what a rank has ended with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import unbroken
from unbroken.distributed import world
from unbroken.errors import UnbrokenError

STEPS, EVERY = 11, 4
PARTS = ("weights", "optimizer", "environment", "generators")


class Training:
    """A policy under FSDP2 that is trained on what it sees; the rank's environment is never reset by hand."""

    def __init__(self, rank: int, size: int, seed: int) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 33), nn.Tanh(), nn.Linear(33, 2))
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(model[0], mesh=mesh)
        sharded: Any = fully_shard(model, mesh=mesh)
        self.model = sharded
        self.optimizer = torch.optim.Adam(sharded.parameters(), lr=1e-2)
        self.env: Any = gymnasium.make("CartPole-v1", max_episode_steps=9)
        observation, _ = self.env.reset(seed=seed + rank)
        self.now = {"observation": observation}
        self.own = np.random.default_rng(seed + rank)
        for start in (torch.manual_seed, random.seed, np.random.seed):
            start(1000 * seed + rank)

    def step(self) -> None:
        batch = []
        for _ in range(6):
            seen = torch.as_tensor(self.now["observation"] + self.own.normal(scale=0.01, size=4)).float()
            batch.append(seen)
            noise = torch.rand(2) + np.random.rand() + random.random()  # noqa: NPY002 - a global one, too
            action = int((noise + torch.tensor([0.0, 0.1])).argmax())
            self.now["observation"], _, ended, cut, _ = self.env.step(action)
            if ended or cut:
                self.now["observation"], _ = self.env.reset()
        logits = self.model(torch.stack(batch))
        torch.multinomial(logits.softmax(-1), 1)
        (logits.square().mean() + logits[:, 0].mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digests(self) -> dict[str, str]:
        """Return what has become of each part, and the next draws of every generator."""
        params = [p._local_tensor.detach() for p in self.model.parameters()]
        moments = [
            self.optimizer.state[p][name]._local_tensor
            for p in self.model.parameters()
            for name in ("exp_avg", "exp_avg_sq")
        ]
        return {
            "weights": digest(*params),
            "optimizer": digest(*moments),
            "environment": digest(self.now["observation"], np.array(self.env.unwrapped.state)),
            "generators": digest(
                torch.rand(3), np.random.rand(3), np.array([random.random()]), self.own.random(3),  # noqa: NPY002
                self.env.unwrapped.np_random.random(3),
            ),
        }  # fmt: skip


def digest(*arrays: Any) -> str:
    found = hashlib.sha256()
    for value in arrays:
        array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        found.update(str((array.dtype, array.shape)).encode() + array.tobytes())
    return found.hexdigest()


def forget(training: Training, part: str, built: list[torch.Tensor], rank: int) -> None:
    """Bring one part to what it was before the restore."""
    if part == "weights":
        for parameter, tensor in zip(training.model.parameters(), built, strict=True):
            parameter._local_tensor.detach().copy_(tensor)
    elif part == "optimizer":
        training.optimizer.state.clear()
    elif part == "environment":
        training.now["observation"], _ = training.env.reset()
    else:
        for start in (torch.manual_seed, random.seed, np.random.seed):
            start(rank)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("meeting")
    parser.add_argument("root")
    parser.add_argument("--kill", type=int, default=-1)
    parser.add_argument("--cold", default="")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dist.init_process_group(
        "gloo", init_method=f"file://{given.meeting}", rank=given.rank, world_size=given.size
    )
    training = Training(given.rank, given.size, given.seed)
    built = [p._local_tensor.detach().clone() for p in training.model.parameters()]
    run = unbroken.Run(given.root, every=EVERY, world=world(replicated=(), start_timeout=300))
    run.track(
        model=training.model,
        optimizer=training.optimizer,
        env=training.env,
        now=training.now,
        own=training.own,
    )
    first = -1
    try:
        for step in run.steps(STEPS):
            if first < 0:
                first = step
                if given.cold:
                    forget(training, given.cold, built, given.rank)
            if given.rank == 1 and step == given.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            training.step()
            run.wait()  # or the next save may be left out, while this one is written
    except UnbrokenError as error:
        if given.kill >= 0:
            raise
        print(json.dumps({"refused": str(error)}), flush=True)
        sys.exit(3)
    print(json.dumps({"first": first, **training.digests()}), flush=True)
    dist.barrier()  # so that no rank goes while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

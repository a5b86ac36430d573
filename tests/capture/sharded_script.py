"""One rank of a training on two: a model under FSDP2, another under DDP, each rank with batches of its own.

    sharded_script.py RANK MEETING ROOT [--kill] [--cold PART] [--seed N]

Trains STEPS steps with a checkpoint at SAVED and prints what it ended with. `--kill`: dies after a step
beyond the checkpoint. `--cold`: a part starts as the program built it, in spite of the checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings

STEPS, SAVED = 8, 5
PARTS = ("weights", "optimizers", "generators")


def meet(rank: int, meeting: str) -> None:
    """Wait for the other rank."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, under which nothing else shares its memory."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()


def digest(*parts: Any) -> str:
    """Return a digest of tensors, in dicts or lists of any depth, bit for bit."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(str((value.dtype, tuple(value.shape))).encode())
            found.update(bytes(local(value).contiguous().clone().untyped_storage()))
        elif isinstance(value, dict):
            for key, item in value.items():
                found.update(str(key).encode())
                add(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            found.update(repr(value).encode())

    add(list(parts))
    return found.hexdigest()


def sharded(module: nn.Module, mesh: DeviceMesh, **options: Any) -> Any:
    """Put a module under FSDP, which makes its class both a module's and FSDP's."""
    return fully_shard(module, mesh=mesh, **options)


def build_sharded(seed: int) -> Any:
    """A model of which no dimension can be halved."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 129), nn.ReLU(), nn.Linear(129, 3))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    sharded(model[0], mesh)
    return sharded(model, mesh)


@dataclass
class Training:
    """Two models with their optimizers. Draws its batches from torch's own generator."""

    sharded: Any
    sharded_optimizer: torch.optim.Optimizer
    replicated: Any
    replicated_optimizer: torch.optim.Optimizer

    @classmethod
    def build(cls, rank: int, seed: int) -> Training:
        model = build_sharded(seed)
        replicated = DistributedDataParallel(nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)))
        for start in (torch.manual_seed, random.seed, np.random.seed):
            start(1000 * seed + rank)  # from here on, each rank has batches of its own
        return cls(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-2),
            replicated,
            torch.optim.SGD(replicated.parameters(), lr=0.1, momentum=0.9),
        )

    def step(self) -> None:
        self.sharded(torch.randn(16, 64)).square().mean().backward()
        self.replicated(torch.randn(16, 7)).square().mean().backward()
        for optimizer in (self.sharded_optimizer, self.replicated_optimizer):
            optimizer.step()
            optimizer.zero_grad()

    def parameters(self) -> dict[str, torch.Tensor]:
        return {
            f"{kind}.{name}": tensor
            for kind, model in (("sharded", self.sharded), ("replicated", self.replicated))
            for name, tensor in model.named_parameters()
        }

    def roots(self) -> dict[str, object]:
        return {
            "sharded": self.sharded,
            "sharded_optimizer": self.sharded_optimizer,
            "replicated": self.replicated,
            "replicated_optimizer": self.replicated_optimizer,
            "generators": GlobalGenerators(),
        }

    def digests(self) -> list[str]:
        """Return what has become of each part, and of the generator."""
        return [
            digest(dict(self.sharded.named_parameters())),
            digest([self.sharded_optimizer.state[p] for p in self.sharded.parameters()]),
            digest(self.replicated.state_dict()),
            digest([self.replicated_optimizer.state[p] for p in self.replicated.parameters()]),
            digest(torch.get_rng_state()),
        ]


def forget(training: Training, part: str, built: dict[str, torch.Tensor]) -> None:
    """Bring one part of both models to what it was before the restore."""
    if part == "generators":
        torch.manual_seed(0)
    elif part == "optimizers":
        training.sharded_optimizer.state.clear()
        training.replicated_optimizer.state.clear()
    else:
        for name, tensor in training.parameters().items():
            local(tensor).copy_(built[name])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("meeting")
    parser.add_argument("root", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--cold", default="")
    given = parser.parse_args()
    meet(given.rank, given.meeting)
    training = Training.build(given.rank, given.seed)
    built = {name: local(tensor).clone() for name, tensor in training.parameters().items()}
    memory = {name: local(tensor).data_ptr() for name, tensor in training.parameters().items()}
    settings = Settings(root=given.root, job=f"rank{given.rank}", every=10**9)
    source = GraftSource(training.roots(), policy_of_loaded())
    with CheckpointEngine(source, settings, environment={}) as engine:
        first = engine.resume().step
        assert memory == {name: local(tensor).data_ptr() for name, tensor in training.parameters().items()}
        if given.cold:
            forget(training, given.cold, built)
        for step in range(first, STEPS):
            if step == SAVED > first:
                engine.save(step, reason="it was time", wait=True)
            if given.kill and step == SAVED + 1:
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            training.step()
        engine.save(STEPS, reason="end of training", position="end")
    print(first, *training.digests())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

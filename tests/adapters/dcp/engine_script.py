"""One rank of a training whose engine keeps shards of its own, which no other rank knows of.

    engine_script.py RANK SIZE MEETING ROOT STEPS

Prints the step that a rank began with, and the digest of its shard then and at the end.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist

import unbroken
from unbroken.distributed import world

SHARD = 300_000
"""Elements of a rank's shard; those of rank 1 are more."""


class Engine:
    """As libraries with sharded optimizers offer it: `state_dict` gives what this rank has, and only that."""

    def __init__(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(100 + rank)
        self.shard = torch.randn(SHARD + 1000 * rank, generator=generator)
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"shard": self.shard, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shard = state["shard"].clone()
        self.steps = state["steps"]

    def step(self) -> None:
        self.shard.mul_(1.01)
        self.steps += 1

    def digest(self) -> str:
        return hashlib.sha256(self.shard.numpy().tobytes() + bytes([self.steps])).hexdigest()


def main() -> None:
    rank, size, meeting, root, steps = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    engine = Engine(int(rank))
    run = unbroken.Run(root, every=1000, world=world(replicated=(), start_timeout=300))
    run.track(engine=engine)
    first, began = -1, ""
    for step in run.steps(int(steps)):
        if first < 0:
            first, began = step, engine.digest()
        engine.step()
    print(json.dumps({"first": first, "began": began, "ended": engine.digest()}), flush=True)
    dist.barrier()  # so that no rank goes while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

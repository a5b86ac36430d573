"""One rank of a data-parallel training whose modules have buffers: means and variances of a BatchNorm.

`RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python ddp_script.py ROOT '{"total": 12, …}'`, see `Options`. One
module gets the buffers of rank 0 before each forward pass, the other one's are each rank's own for good.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unbroken
from unbroken.distributed import world
from unbroken.errors import UnbrokenError


@dataclass
class Options:
    """What this rank does beside training."""

    total: int = 12
    every: int = 4
    die: int = -1
    """Kill this process at the top of that step."""
    cold: str = ""
    """Part that is not brought back."""
    drift: int = -1
    """From this step on one moment of this rank's optimizer is another in its last bit."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def leave_cold(part: str, shared: Any, own: Any, optimizer: Any, generator: torch.Generator) -> None:
    if part == "shared":
        shared.module[1].reset_running_stats()
    elif part == "own":
        own.module[1].reset_running_stats()
    elif part == "weights":
        torch.manual_seed(3)
        for model in (shared, own):
            for layer in (model.module[0], model.module[3]):
                layer.reset_parameters()
    elif part == "optimizer":
        for state in optimizer.state.values():
            state["exp_avg"].zero_()
    elif part == "generator":
        generator.manual_seed(99)


def main() -> None:
    root, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me = world(sync_timeout=300.0, start_timeout=300.0)
    random.seed(me.rank)
    np.random.seed(me.rank)  # noqa: NPY002 - the global generator is saved
    torch.manual_seed(5 + 100 * me.rank)  # the wrapper gives all ranks the weights of rank 0
    shared = DistributedDataParallel(network())
    own = DistributedDataParallel(network(), broadcast_buffers=False)
    optimizer = torch.optim.Adam([*shared.parameters(), *own.parameters()])
    generator = torch.Generator()
    generator.manual_seed(10 + me.rank)
    run = unbroken.Run(root, every=options.every, world=me, quiet=True)
    run.track(shared=shared, own=own, optimizer=optimizer, generator=generator)
    facts: dict[str, Any] = {}
    try:
        for step in run.steps(options.total):
            if not facts:
                assert run.report is not None
                facts = {"started": step, "changes": list(run.report.changes), "line": run.report.line}
                leave_cold(options.cold, shared, own, optimizer, generator)
            if step == options.die:
                os.kill(os.getpid(), signal.SIGKILL)
            inputs = torch.randn(8, 4, generator=generator) * (1 + me.rank)
            optimizer.zero_grad()
            (shared(inputs).square().mean() + own(inputs).square().mean()).backward()
            optimizer.step()
            if step == options.drift:
                moment = next(iter(optimizer.state.values()))["exp_avg"]
                moment.view(torch.int32).add_(1)
            run.wait()  # or the next save may be left out, while this one is written
    except UnbrokenError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
        sys.stdout.flush()
        os._exit(3)  # the other rank is not there to tear the group down with
    for name, model in (("shared", shared), ("own", own)):
        parameters = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
        buffers = [b.numpy().tobytes().hex() for b in model.buffers()]
        facts.update({name: parameters, f"{name} buffers": buffers})
    facts["moments"] = [s["exp_avg"].numpy().tobytes().hex() for s in optimizer.state.values()]
    facts["draws"] = torch.rand(3, generator=generator).tolist()
    sys.stdout.write(json.dumps(facts) + "\n")
    dist.destroy_process_group()


main()

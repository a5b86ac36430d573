"""One rank of a data-parallel training over gloo, which saves by a clock of rank 0.

`RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python gloo_script.py ROOT '{"total": 60, …}'`, see `Options`. The
clock is the training itself: a second for each step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

import unbroken
from unbroken.adapters import loop
from unbroken.distributed import world
from unbroken.engine.engine import CheckpointEngine
from unbroken.errors import UnbrokenError


@dataclass
class Options:
    """What this rank does beside training."""

    total: int = 60
    die: int = -1
    """Kill this process at the top of that step."""
    stop: int = -1
    """Stop this process (SIGSTOP) at the end of that step."""
    told: int = -1
    """Say that this step has come, and wait in it until a signal tells this process to end."""
    cold: str = ""
    """Part that is not brought back."""
    step_timeout: float = 300.0


def at(step: int, options: Options, run: unbroken.Run) -> None:
    """Do in this step what the options say."""
    if step == options.die:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == options.told:
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        while not run._running().preemption.told:
            os.sched_yield()


def main() -> None:
    root, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me = world(sync_timeout=300.0, start_timeout=300.0, step_timeout=options.step_timeout)
    torch.manual_seed(me.rank)
    random.seed(me.rank)
    np.random.seed(me.rank)  # noqa: NPY002 - the global generator is saved
    model = torch.nn.Linear(4, 1)
    dist.broadcast(model.weight.data, 0)
    dist.broadcast(model.bias.data, 0)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator()
    generator.manual_seed(10 + me.rank)

    seconds = 0.0
    loop.__dict__["CheckpointEngine"] = partial(CheckpointEngine, clock=lambda: seconds)
    # A clock of rank 0 alone decides; the other's would never have called for a save.
    every = unbroken.Every(seconds=7.0 if me.rank == 0 else 1000.0)
    run = unbroken.Run(root, every=every, keep_last=3, world=me, quiet=True)
    run.track(model=model, optimizer=optimizer, generator=generator)
    run.vars.seen = 0.0
    started = -1
    try:
        for step in run.steps(options.total):
            if started < 0:
                started = step
                if options.cold == "weights":
                    for parameter, value in zip(model.parameters(), first, strict=True):
                        parameter.data.copy_(value)
                elif options.cold == "optimizer":
                    for state in optimizer.state.values():
                        state["exp_avg"].zero_()
                elif options.cold == "generator":
                    generator.manual_seed(10 + me.rank)
                elif options.cold == "global generators":
                    random.seed(me.rank)
                    np.random.seed(me.rank)  # noqa: NPY002
                    torch.manual_seed(me.rank)
                elif options.cold == "vars":
                    run.vars.seen = 0.0
            at(step, options, run)
            inputs = torch.randn(8, 4, generator=generator)
            run.vars.seen += float(inputs.sum()) + random.random()
            optimizer.zero_grad()
            model(inputs + torch.rand(1) * np.random.rand()).pow(2).mean().backward()  # noqa: NPY002
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            run.wait()  # or the next save may be left out, while this one is written
            if step == options.stop:
                # The other one waits for it where ranks agree, and nowhere else.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            seconds += 1.0
    except UnbrokenError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
        sys.stdout.flush()
        os._exit(3)  # the other rank is not there to tear the group down with
    found = {
        "started": started,
        "weights": [parameter.detach().numpy().tobytes().hex() for parameter in model.parameters()],
        "moments": [state["exp_avg"].numpy().tobytes().hex() for state in optimizer.state.values()],
        "generator": torch.rand(3, generator=generator).tolist(),
        "global generators": [random.random(), np.random.rand(), torch.rand(1).item()],  # noqa: NPY002
        "seen": run.vars.seen,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


main()

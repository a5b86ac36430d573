"""One rank of a data-parallel training over gloo, which saves by the clock of rank 0.

`RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python gloo_script.py ROOT TOTAL DIE_AT LATE_AT`: this rank kills
itself at step DIE_AT; rank 0 gets stuck at the end of step LATE_AT.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import unbroken
from unbroken.distributed import world
from unbroken.errors import UnbrokenError

root, (total, die_at, late_at) = sys.argv[1], map(int, sys.argv[2:5])
torch.set_num_threads(1)
dist.init_process_group("gloo")
me = world(sync_timeout=5.0 if late_at < 0 else 1.0, start_timeout=30.0)
torch.manual_seed(me.rank)
random.seed(me.rank)
np.random.seed(me.rank)  # noqa: NPY002 - the global generator is saved
model = torch.nn.Linear(4, 1)
dist.broadcast(model.weight.data, 0)
dist.broadcast(model.bias.data, 0)
optimizer = torch.optim.Adam(model.parameters())
generator = torch.Generator()
generator.manual_seed(10 + me.rank)

# A clock of rank 0 alone decides; the other's would never have called for a save.
seconds = 0.02 if me.rank == 0 else 1000.0
run = unbroken.Run(root, every=unbroken.Every(seconds=seconds), keep_last=3, world=me, quiet=True)
run.track(model=model, optimizer=optimizer, generator=generator)
started = -1
try:
    for step in run.steps(total):
        if started < 0:
            started = step
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if step == late_at and me.rank == 0:
            time.sleep(
                600
            )  # stuck for good, where the other one waits only for our agreement; the test kills it
        time.sleep(0.002)  # so that the clock of rank 0 calls for some saves, and not for one at every step
except UnbrokenError as error:
    sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
    sys.stdout.flush()
    os._exit(3)  # the other rank is not there to tear the group down with
weights = [parameter.detach().numpy().tobytes().hex() for parameter in model.parameters()]
draws = torch.rand(3, generator=generator).tolist()
sys.stdout.write(json.dumps({"started": started, "weights": weights, "draws": draws}) + "\n")
dist.destroy_process_group()

"""One rank of three that train a data-parallel module, again and again: undisturbed, and with a wrapper that is
made anew in the middle, as after a restart. `RANK PORT`; rank 0 prints what it has found as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unbroken.capture.tracked import Tracked
from unbroken.types import Fidelity

SIZE, STEPS = 3, 6


def weights(rank: int, *, restart: bool, keep_order: bool) -> list[float]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(50, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 7))
    optimizer = torch.optim.Adam(module.parameters())
    parallel = DistributedDataParallel(module, find_unused_parameters=keep_order)
    for step in range(STEPS):
        if restart and step == STEPS // 2:
            parallel = DistributedDataParallel(module, find_unused_parameters=keep_order)
        batch = torch.randn(16, 50, generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        loss = parallel(batch).square().sum()
        loss.backward()
        optimizer.step()
    return [value for parameter in module.parameters() for value in parameter.detach().flatten().tolist()]


def promise(*, keep_order: bool) -> dict[str, str]:
    tracked = Tracked()
    tracked.add({"net": DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=keep_order)})
    promises = tracked.source().capture().promises
    return {name: p.reason for name, p in promises.items() if p.fidelity is not Fidelity.EXACT}


def main() -> None:
    rank = int(sys.argv[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE)
    found = {
        kept: {
            "same": weights(rank, restart=True, keep_order=kept == "kept")
            == weights(rank, restart=False, keep_order=kept == "kept"),
            "inexact": promise(keep_order=kept == "kept"),
        }
        for kept in ("kept", "refilled")
    }
    if rank == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()

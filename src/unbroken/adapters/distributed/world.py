"""The world of a process that trains under torch.distributed, or under any launcher that numbers its ranks.

Where a process group exists, it is used for one thing: every rank hears from rank 0 whether to save at this
point. All else goes through the store, where a rank that has stopped costs a timeout and not a hang.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from unbroken.adapters.distributed.launcher import rank_and_size
from unbroken.engine.world import REPLICATED, World
from unbroken.errors import RankMissing


def world(
    *,
    replicated: Collection[str] = REPLICATED,
    sync_timeout: float = 300.0,
    start_timeout: float = 600.0,
    environment: Mapping[str, str] = os.environ,
) -> World:
    """Return the world as this process sees it. To be called on every rank, at the same place.

    With an initialized process group of torch.distributed: its ranks, and saves at any moment that rank 0
    chooses (one broadcast of a byte at each clean point, over a gloo group made here). Without one: what
    torchrun, SLURM or MPI says, and saves at fixed steps. Without either: a process alone.

    Raises:
        ConfigError: the launcher's variables contradict each other.
    """
    dist = _initialized()
    if dist is not None:
        agree = None
        if dist.get_world_size() > 1:
            agree = broadcaster(dist, timeout=sync_timeout)
        return World(
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            replicated=replicated,
            sync_timeout=sync_timeout,
            start_timeout=start_timeout,
            agree=agree,
        )
    rank, size = rank_and_size(environment) or (0, 1)
    return World(
        rank=rank, size=size, replicated=replicated, sync_timeout=sync_timeout, start_timeout=start_timeout
    )


def _initialized() -> Any:
    """Return torch.distributed if a process group exists. torch is not imported for the question."""
    if "torch.distributed" not in sys.modules:
        return None
    dist: Any = sys.modules["torch.distributed"]
    return dist if dist.is_available() and dist.is_initialized() else None


def broadcaster(dist: Any, *, timeout: float) -> Callable[[bool], bool]:
    """Return a function that gives on every rank what rank 0 has called it with.

    Training's own group is left alone: a collective of ours between two of its would be taken for one of its.

    Raises (the function): RankMissing where the others do not come within `timeout` seconds.
    """
    import torch

    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    flag = torch.zeros(1, dtype=torch.uint8)

    def agree(wish: bool) -> bool:  # noqa: FBT001 - the contract of World.agree
        flag.fill_(int(wish))
        try:
            dist.broadcast(flag, src=0, group=group)
        except RuntimeError as error:
            raise RankMissing(
                f"The ranks did not meet to agree on a save: {error}",
                hint="Every rank has to come to the same clean points.",
            ) from error
        return bool(flag.item())

    return agree

"""The world of a process that trains under torch.distributed, or under any launcher that numbers its ranks.

Where a process group exists, it is used for one thing: every rank hears whether to save at this point, since rank 0
wants to or any of them was told to end. All else goes through the store, where a rank that has stopped costs a
timeout and not a hang.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from unbroken.adapters.distributed.launcher import rank_and_size
from unbroken.capture.process_group import STEP_SECONDS, any_rank, initialized
from unbroken.engine.world import REPLICATED, World


def world(
    *,
    replicated: Collection[str] = REPLICATED,
    sync_timeout: float = 300.0,
    start_timeout: float = 600.0,
    step_timeout: float = STEP_SECONDS,
    environment: Mapping[str, str] = os.environ,
) -> World:
    """Return the world as this process sees it. To be called on every rank, at the same place.

    With an initialized process group of torch.distributed: its ranks, and saves at any moment that rank 0
    chooses, or at which a signal has told any of them to end (one reduction of a byte at each clean point, over a gloo
    group made here). Without one: what
    torchrun, MPI or SLURM's srun says, and saves at fixed steps. Without either: a process alone, as one is that a
    batch script of SLURM starts without srun, however many tasks it was given.

    `step_timeout`: seconds that a rank may keep the others waiting at a clean point, where they ask rank 0.
    `sync_timeout` and `start_timeout` are those of `World`.

    Raises:
        ConfigError: the launcher's variables contradict each other.
    """
    dist = initialized()
    if dist is not None:
        agree = None
        if dist.get_world_size() > 1:
            agree = any_rank(dist, timeout=step_timeout)
        return World(
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            replicated=replicated,
            sync_timeout=sync_timeout,
            start_timeout=start_timeout,
            agree=agree,
        )
    told = rank_and_size(environment)
    return World(
        rank=0 if told is None else told.rank,
        size=1 if told is None else told.size,
        replicated=replicated,
        sync_timeout=sync_timeout,
        start_timeout=start_timeout,
        origin="" if told is None else told.origin,
    )

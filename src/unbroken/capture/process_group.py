"""Data-parallel training by torch.distributed: its process group, and the wrappers around its modules.

The process group is used for one thing: to agree on a save. torch is not imported for the question whether
there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from unbroken.errors import RankMissing

STEP_SECONDS = 3600.0
"""So long a rank may keep the others waiting at a clean point: as long as one evaluation on one rank, or longer.
A rank that is gone is noticed earlier: its connection ends."""


def initialized() -> Any:
    """Return `torch.distributed` if a process group exists, else None."""
    if "torch.distributed" not in sys.modules:
        return None
    dist: Any = sys.modules["torch.distributed"]
    return dist if dist.is_available() and dist.is_initialized() else None


def any_rank(dist: Any, *, timeout: float = STEP_SECONDS) -> Callable[[bool], bool]:
    """Return a function that says on every rank whether any of them has called it with yes: rank 0 for a save, each
    for its end.

    Raises (the function): RankMissing where the others do not come within `timeout` seconds.
    """
    ask = together(dist, timeout=timeout)

    def agree(wish: bool) -> bool:  # noqa: FBT001 - the contract of World.agree
        return ask([wish])[0]

    return agree


def together(dist: Any, *, timeout: float = STEP_SECONDS) -> Callable[[Sequence[bool]], list[bool]]:
    """Return a function that tells every rank which of some flags any rank has raised.

    Training's own group is left alone: a collective of ours between two of its would be taken for one of its.

    Raises (the function): RankMissing where the others do not come within `timeout` seconds.
    """
    import torch

    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def ask(flags: Sequence[bool]) -> list[bool]:
        raised = torch.tensor(flags, dtype=torch.uint8)
        try:
            dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=group)
        except RuntimeError as error:
            raise RankMissing(
                f"The ranks did not meet to agree on a save: {error}",
                hint="Every rank has to come to the same clean points.",
            ) from error
        return [bool(flag) for flag in raised.tolist()]

    return ask


def unwrapped(value: object) -> object:
    """Return the module that a data-parallel wrapper holds; anything else as it is.

    The wrapper belongs to the process, and is not there where a training goes on alone.
    """
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return value
    wrapper = isinstance(value, (parallel.DistributedDataParallel, parallel.DataParallel))
    found: object = getattr(value, "module", value) if wrapper else value
    return found


def other_low_bits(value: object) -> str:
    """Return why a data-parallel module makes other low bits after a restart; empty if it does not.

    Three summands and more give another sum in another order, and the order in which processes add up a
    gradient goes by its place in a bucket. DistributedDataParallel fills its buckets anew after its first
    step, so the first step after a restart adds up otherwise than the same one in a process that went on.
    """
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is None or not isinstance(value, parallel.DistributedDataParallel):
        return ""
    wrapper: Any = value
    refills = wrapper.static_graph or not wrapper.find_unused_parameters
    if wrapper.process_group.size() < 3 or not refills:
        return ""
    return (
        "three processes and more add up gradients in another order in the first step after a restart;"
        " DistributedDataParallel(…, find_unused_parameters=True) keeps the order"
    )

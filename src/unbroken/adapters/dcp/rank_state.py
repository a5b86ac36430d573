"""What each rank has for itself (generators, a buffer, a place in its data), beside a state that is cut.

torch.distributed.checkpoint writes a key that several ranks have once, from whichever rank it likes. So what
is a rank's own needs a key of its own: everything of rank 1 stands below `@rank1`. Whoever loads on another
number of ranks has to decide who goes on with what; nobody does so unasked, and what nobody takes is named.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

import torch.distributed as dist

from unbroken.errors import ConfigError

_KEY = re.compile(r"@rank([0-9]+)(?:\..*)?", re.DOTALL)


class RankStateWarning(UserWarning):
    """A rank starts without a state of its own, or a state has no rank any more."""


def rank_key(rank: int) -> str:
    """Return the key below which everything of a rank stands.

    >>> rank_key(1)
    '@rank1'
    """
    return f"@rank{rank}"


def own_rank(rank: int | None) -> int:
    """Return `rank`, or that of this process."""
    if rank is None:
        return dist.get_rank() if dist.is_initialized() else 0
    if rank < 0:
        raise ConfigError(f"{rank!r} is no rank.", hint="Leave it out for that of this process.")
    return rank


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank_state(state: dict[str, object], *, rank: int | None = None) -> dict[str, object]:
    """Return `state` under the key of this rank, to be saved beside a state that is cut.

    >>> rank_state({"draws": 3}, rank=1)
    {'@rank1': {'draws': 3}}

    To load it again, see `StorageReader.rank_state`.
    """
    return {rank_key(own_rank(rank)): state}


def ranks_of(keys: Iterable[str]) -> list[int]:
    """Return the ranks that have a state of their own, in ascending order.

    >>> ranks_of(["model.weight", "@rank1.draws", "@rank0.draws"])
    [0, 1]
    """
    return sorted({int(found[1]) for key in keys if (found := _KEY.fullmatch(key))})


def tell_of_missing(rank: int, there: Iterable[int], *, step: int) -> None:
    """Warn that a rank starts without a state of its own."""
    have = ", ".join(map(str, there)) or "none"
    warnings.warn(
        f"Rank {rank} has no state of its own in the checkpoint of step {step:,} (ranks that have: {have}):"
        " it keeps what it was built with.",
        RankStateWarning,
        stacklevel=3,
    )


def tell_of_left(there: Iterable[int], *, size: int, step: int) -> None:
    """Warn, on one rank, of states whose ranks are not there any more."""
    left = [rank for rank in there if rank >= size]
    if left:
        names = ", ".join(rank_key(rank) for rank in left)
        warnings.warn(
            f"The checkpoint of step {step:,} has states of ranks that are not there any more: {names}."
            " Nobody loads them; rank_state(…, of=…) does.",
            RankStateWarning,
            stacklevel=3,
        )

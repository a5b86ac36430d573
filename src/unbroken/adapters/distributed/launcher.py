"""Which rank a process is, as its launcher has told it through the environment."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.errors import ConfigError

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
)


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and number of ranks, None where no launcher has said anything.

    >>> rank_and_size({"RANK": "1", "WORLD_SIZE": "4"})
    (1, 4)

    Raises:
        ConfigError: one of the two is missing, or no number.
    """
    for launcher, rank, size in _LAUNCHERS:
        found = environment.get(rank), environment.get(size)
        if found == (None, None):
            continue
        try:
            return int(found[0] or ""), int(found[1] or "")
        except ValueError:
            raise ConfigError(
                f"{launcher} is to say which rank this is, and {rank}={found[0]!r}, {size}={found[1]!r}.",
                hint="Set both to numbers, or neither.",
            ) from None
    return None

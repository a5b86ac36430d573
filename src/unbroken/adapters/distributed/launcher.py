"""Which rank a process is, as its launcher has told it through the environment.

Variables are inherited, so one that is set says little by itself: in a batch script SLURM sets the rank of a task
that nobody has started, and under `mpirun` the variables of SLURM are those of MPI's own daemons. So the launcher
that stands next to the process is asked first, and SLURM is believed only where `srun` has started something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unbroken.errors import ConfigError

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""SLURM numbers from here on what is no step of `srun`: the batch script, the shell of an allocation."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A launcher, and the variables by which it tells rank and size; of several for one the first that is set."""

    name: str
    rank: str
    sizes: tuple[str, ...]

    def told(self, environment: Mapping[str, str]) -> Told | None:
        size = next((name for name in self.sizes if name in environment), self.sizes[0])
        found = environment.get(self.rank), environment.get(size)
        if found == (None, None):
            return None
        said = f"{self.rank}={found[0]!r} and {size}={found[1]!r}"
        try:
            told = Told(int(found[0] or ""), int(found[1] or ""), f"{self.name} says so by {said}")
        except ValueError:
            raise ConfigError(
                f"{self.name} is to say which rank this is, and {said}.",
                hint="Set both to numbers, or neither.",
            ) from None
        if not 0 <= told.rank < told.size:
            raise ConfigError(
                f"There is no rank {told.rank} among {told.size}, and {told.origin}.",
                hint="Ranks are counted from 0; start every process by the launcher, or unset these variables.",
            )
        return told


@dataclass(frozen=True, slots=True)
class Told:
    """Rank and number of ranks, and who has told them, as a half-sentence."""

    rank: int
    size: int
    origin: str


_SLURM = _Launcher("SLURM", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", ("WORLD_SIZE",)),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MPICH", "PMI_RANK", ("PMI_SIZE",)),
    _SLURM,
)


def rank_and_size(environment: Mapping[str, str]) -> Told | None:
    """Return rank and number of ranks, None where no launcher has started this process as one of several.

    >>> rank_and_size({"RANK": "1", "WORLD_SIZE": "4"}).size
    4

    Raises:
        ConfigError: one of the two is missing, or no number, or they contradict each other.
    """
    for launcher in _LAUNCHERS:
        if launcher is _SLURM and not _is_step(environment):
            continue
        told = launcher.told(environment)
        if told is not None:
            return told
    return None


def _is_step(environment: Mapping[str, str]) -> bool:
    """Whether `srun` has started this process: in an allocation alone nobody starts the other tasks."""
    step = environment.get("SLURM_STEP_ID", "")
    return step.isascii() and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP

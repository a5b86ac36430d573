"""What a launcher says of rank and number of ranks, through the environment."""

from __future__ import annotations

import pytest

from unbroken.distributed import world
from unbroken.errors import ConfigError


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_every_launcher_is_understood(names: tuple[str, str]) -> None:
    found = world(environment={names[0]: "2", names[1]: "4"})
    assert (found.rank, found.size, found.agree) == (2, 4, None)


def test_without_a_launcher_a_process_is_alone() -> None:
    found = world(environment={})
    assert (found.rank, found.size) == (0, 1)


def test_torchrun_within_slurm_is_what_counts() -> None:
    of_slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert world(environment={**of_slurm, "RANK": "1", "WORLD_SIZE": "2"}).size == 2


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "0"},
    ],
)
def test_what_contradicts_itself_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        world(environment=environment)

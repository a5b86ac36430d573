"""What a launcher says of rank and number of ranks, through the environment."""

from __future__ import annotations

import pytest

from unbroken.distributed import world
from unbroken.errors import ConfigError

STEP = {"SLURM_STEP_ID": "0"}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
"""What a batch script sees that was given four tasks."""


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (("RANK", "WORLD_SIZE"), {}),
        (("SLURM_PROCID", "SLURM_NTASKS"), STEP),
        (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), STEP),
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), {}),
        (("PMI_RANK", "PMI_SIZE"), {}),
    ],
)
def test_every_launcher_is_understood(names: tuple[str, str], more: dict[str, str]) -> None:
    found = world(environment={names[0]: "2", names[1]: "4", **more})
    assert (found.rank, found.size, found.agree) == (2, 4, None)


def test_without_a_launcher_a_process_is_alone() -> None:
    found = world(environment={})
    assert (found.rank, found.size) == (0, 1)


def test_torchrun_within_slurm_is_what_counts() -> None:
    of_slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", **STEP}
    assert world(environment={**of_slurm, "RANK": "1", "WORLD_SIZE": "2"}).size == 2


@pytest.mark.parametrize("step", ["", "4294967291", "4294967290", "4294967294"])
def test_in_a_batch_script_without_srun_a_process_is_alone(step: str) -> None:
    found = world(environment={**BATCH, **({"SLURM_STEP_ID": step} if step else {})})
    assert (found.rank, found.size) == (0, 1)


def test_in_an_allocation_without_any_step_a_process_is_alone() -> None:
    assert world(environment={"SLURM_NTASKS": "4"}).size == 1


def test_a_step_of_fewer_tasks_than_were_allocated_is_what_counts() -> None:
    found = world(environment={**BATCH, **STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})
    assert (found.rank, found.size) == (1, 2)


@pytest.mark.parametrize(
    "of_mpi",
    [
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
        {"PMI_RANK": "5", "PMI_SIZE": "8"},
    ],
)
def test_under_mpirun_the_daemons_that_srun_has_started_are_no_ranks(of_mpi: dict[str, str]) -> None:
    daemon = {**BATCH, **STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    found = world(environment={**daemon, **of_mpi})
    assert (found.rank, found.size) == (5, 8)


def test_an_error_says_where_the_numbers_come_from() -> None:
    with pytest.raises(ConfigError, match="SLURM says so by SLURM_PROCID='4' and SLURM_STEP_NUM_TASKS='4'"):
        world(environment={**BATCH, **STEP, "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "4"})


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

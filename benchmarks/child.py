"""The measuring process: `python -m benchmarks.child ORDER RESULTS`, started by `benchmarks.__main__`.

Does the jobs of the order one after the other and appends a line a row. What goes wrong becomes a row.
"""

from __future__ import annotations

import shutil
import sys
import traceback
import warnings
from pathlib import Path

import msgspec

from benchmarks.records import (
    GymJob,
    GymRow,
    Job,
    RanksJob,
    RanksRow,
    RestoreJob,
    RestoreRow,
    Row,
    SaveJob,
    SaveRow,
    Sizes,
    StoreJob,
    StoreRow,
    TrainingJob,
    TrainingRow,
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measures."""

    jobs: list[Job]
    sizes: Sizes
    frames: str
    folder: str


def measure(job: Job, order: Order) -> Row:
    """Measure one row. Imports what that needs, so that a process has nothing else in its memory."""
    frames, folder, sizes = Path(order.frames), Path(order.folder), order.sizes
    if isinstance(job, StoreJob):
        from benchmarks import growing

        return growing.measure(frames, folder, sizes)
    if isinstance(job, TrainingJob):
        from benchmarks import training

        return training.measure(frames, folder, sizes)
    if isinstance(job, RanksJob):
        from benchmarks import ranks

        return ranks.measure(folder, sizes)
    if isinstance(job, GymJob):
        from benchmarks import gym

        return gym.measure(folder, sizes)
    from benchmarks import restoring, saving, workloads
    from benchmarks.plan import CONTENDERS

    workload = workloads.build(job.workload, sizes, frames)
    contender = CONTENDERS[job.contender]
    if isinstance(job, SaveJob):
        if not job.idle:
            sizes = msgspec.structs.replace(sizes, idle_saves=0)
        return saving.measure(workload, contender, folder, job.workload, sizes)
    return restoring.measure(workload, contender, folder, job.workload, sizes)


def name_of(job: SaveJob | RestoreJob) -> str:
    """Return what the contender of a job is called."""
    from benchmarks.plan import CONTENDERS

    return CONTENDERS[job.contender].name


def failed(job: Job, failure: str) -> Row:
    """Return the row of a job that has none."""
    if isinstance(job, SaveJob):
        return SaveRow(workload=job.workload, contender=name_of(job), failure=failure)
    if isinstance(job, RestoreJob):
        return RestoreRow(workload=job.workload, contender=name_of(job), failure=failure)
    if isinstance(job, StoreJob):
        return StoreRow(failure=failure)
    if isinstance(job, RanksJob):
        return RanksRow(failure=failure)
    if isinstance(job, GymJob):
        return GymRow(failure=failure)
    return TrainingRow(failure=failure)


def main(order_file: str, results_file: str) -> None:
    """Do the jobs of the order."""
    warnings.simplefilter("ignore")  # peers announce deprecations of their own
    order = msgspec.json.decode(Path(order_file).read_bytes(), type=Order)
    with open(results_file, "ab") as results:
        for job in order.jobs:
            try:
                row = measure(job, order)
            except Exception as error:  # noqa: BLE001 - whatever a peer raises is shown in its row
                traceback.print_exc()
                row = failed(job, f"{type(error).__name__}: {error}"[:300])
            finally:
                shutil.rmtree(order.folder, ignore_errors=True)
            results.write(msgspec.json.encode(row) + b"\n")
            results.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

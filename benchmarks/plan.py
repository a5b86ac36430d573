"""Which parts there are, and what is measured for each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks import workloads
from benchmarks.contenders import Contender
from benchmarks.ours import Unbroken
from benchmarks.peers import PEERS, DistributedAsync, Orbax, StableBaselines
from benchmarks.records import GymJob, Job, RanksJob, RestoreJob, SaveJob, StoreJob, TrainingJob

_ALL: tuple[type[Contender], ...] = (Unbroken, *PEERS)
CONTENDERS = {kind.__name__: kind for kind in _ALL}
PARTS = {
    "a": "Nature-CNN, Adam and a frame buffer, and the same with a grown buffer: saves",
    "b": "actor, critics and a buffer of float32 vectors: saves",
    "c": "a model with Adam and no buffer: saves",
    "e": "(a) and (c): loads",
    "sb3": "DQN on Pong with and without saves",
    "growth": "the store of a growing run after many saves",
    "ranks": "1, 2, 4 and 8 ranks that save together",
    "gym": "sessions of NeMo Gym: saves, restores and what its log costs, in an environment of its own",
}
_SAVED = {"a": (workloads.ATARI, workloads.GROWN), "b": (workloads.VECTORS,), "c": (workloads.MODEL,)}
_AFTER_IDLENESS = (workloads.ATARI, workloads.MODEL)
_GROWN = {kind.__name__ for kind in (Unbroken, StableBaselines, DistributedAsync, Orbax)}
"""Who is measured with the grown buffer. The others would take minutes there and tell no more."""
_LOADS_ALIKE = DistributedAsync.__name__
"""What it has written is read as what `Distributed` has."""


def jobs(parts: Sequence[str], contenders: Collection[str] = CONTENDERS) -> list[Job]:
    """Return what to measure, in order; contenders of one workload follow each other. Parts without
    contenders are measured whoever is asked for."""
    found = _all(parts)
    return [
        job
        for job in found
        if isinstance(job, StoreJob | TrainingJob | RanksJob | GymJob) or job.contender in contenders
    ]


def _all(parts: Sequence[str]) -> list[Job]:
    found: list[Job] = []
    for part in parts:
        if part == "sb3":
            found.append(TrainingJob())
        elif part == "growth":
            found.append(StoreJob())
        elif part == "ranks":
            found.append(RanksJob())
        elif part == "gym":
            found.append(GymJob())
        elif part == "e":
            for workload in (workloads.ATARI, workloads.MODEL):
                found += [RestoreJob(workload, name) for name in _fit(workload) if name != _LOADS_ALIKE]
        else:
            for workload in _SAVED[part]:
                idle = workload in _AFTER_IDLENESS
                found += [SaveJob(workload, name, idle) for name in _fit(workload)]
    return found


def _fit(workload: str) -> list[str]:
    if workload == workloads.GROWN:
        return [name for name in CONTENDERS if name in _GROWN]
    has_buffer = workload != workloads.MODEL
    return [name for name, kind in CONTENDERS.items() if has_buffer or not kind.needs_buffer]

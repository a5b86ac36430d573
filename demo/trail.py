"""What a training did, step by step: read by the demo, written by `recorder.py`.

One record for each call of `env.step`, in a file that all processes of a run append to. It holds a
digest of what the step did (actions, observations, rewards), so that two runs can be compared step by
step. A process that starts again at an earlier step repeats records; what counts is the last process
that did a step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [("pid", "<u4"), ("step", "<u4"), ("digest", "<u8"), ("episodes", "<u4"), ("returns", "<f4")]
)
"""`episodes` ended in this step, with the sum of their `returns`."""


@dataclass(frozen=True, slots=True)
class Trail:
    """One run from its first step to its last, without what was thrown away and done again."""

    records: NDArray[np.void]
    starts: tuple[int, ...]
    """The step after which each process went on; the first is 0."""

    def reward_curve(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return steps and the mean return of the last `window` episodes ended by then."""
        ended = self.records[self.records["episodes"] > 0]
        means = ended["returns"] / ended["episodes"]
        smooth = [float(means[max(0, i - window + 1) : i + 1].mean()) for i in range(len(means))]
        return ended["step"].astype(np.int64), np.asarray(smooth, np.float64)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How one run departs from another: in `differing` of `steps` calls of `env.step`, from `first` on."""

    steps: int
    differing: int
    first: int | None


def last_step(path: Path) -> int:
    """Return the newest step recorded so far, 0 if there is none."""
    try:
        with path.open("rb") as file:
            complete = os.fstat(file.fileno()).st_size // RECORD.itemsize
            if complete == 0:
                return 0
            file.seek((complete - 1) * RECORD.itemsize)
            return int(np.frombuffer(file.read(RECORD.itemsize), RECORD)[0]["step"])
    except FileNotFoundError:
        return 0


def read(path: Path) -> Trail:
    """Read the records of all processes and keep, for each step, the last one."""
    records = np.fromfile(path, RECORD)
    edges = [0, *(np.flatnonzero(np.diff(records["pid"])) + 1), len(records)]
    kept = records[:0]
    starts: list[int] = []
    for begin, end in pairwise(edges):
        part = records[begin:end]
        kept = kept[kept["step"] < part["step"][0]]
        starts.append(int(kept["step"][-1]) if len(kept) else 0)
        kept = np.concatenate([kept, part])
    return Trail(kept, tuple(starts))


def diverge(undisturbed: Trail, other: Trail) -> Divergence:
    """Compare two runs step by step; a step that only one of them did differs."""
    left = dict(
        zip(undisturbed.records["step"].tolist(), undisturbed.records["digest"].tolist(), strict=True)
    )
    right = dict(zip(other.records["step"].tolist(), other.records["digest"].tolist(), strict=True))
    differing = sorted(step for step in {**left, **right} if left.get(step) != right.get(step))
    return Divergence(len(left), len(differing), differing[0] if differing else None)

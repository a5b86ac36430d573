"""How far a run departs from the undisturbed one, and the table that says so."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from demo.lane import Lane
from demo.trail import Divergence, diverge
from unbroken.report.proof import FinalComparison
from unbroken.report.table import Cell, Column, Table

COLUMNS = (
    Column("training"),
    Column("resumed by"),
    Column("killed at step", numeric=True),
    Column("went on from", numeric=True),
    Column("env.step calls that differ", numeric=True),
    Column("from step", numeric=True),
    Column("weights off by", numeric=True),
    Column("verdict"),
)


@dataclass(frozen=True, slots=True)
class Departure:
    """What distinguishes a run from the undisturbed one.

    `finals` compares the last checkpoints leaf by leaf; None where a run keeps no whole state.
    """

    steps: Divergence
    weights: float
    finals: tuple[FinalComparison, ...] | None = None

    @property
    def none(self) -> bool:
        """Whether there is no difference at all: not in a step, not in a weight, not in a leaf of the state."""
        finals = self.finals
        same_state = finals is None or (finals != () and all(f.equal and f.whole for f in finals))
        return self.steps.differing == 0 and self.weights == 0.0 and same_state


def depart(undisturbed: Lane, other: Lane, *, finals: tuple[FinalComparison, ...] | None = None) -> Departure:
    steps = diverge(undisturbed.trail, other.trail)
    return Departure(steps, weights_apart(undisturbed.folder, other.folder), finals)


def weights_apart(one: Path, other: Path) -> float:
    """Return the largest absolute difference of any weight; infinite if one is not a number."""
    left, right = load_weights(one), load_weights(other)
    if left.keys() != right.keys():
        return float("inf")
    worst = 0.0
    for name, values in left.items():
        if values.tobytes() != right[name].tobytes():
            gap = float(np.max(np.abs(values.astype(np.float64) - right[name].astype(np.float64))))
            # Two bit patterns of one number (0.0 and -0.0) are a difference all the same.
            worst = max(worst, gap if np.isfinite(gap) else np.inf, sys.float_info.min)
    return worst


def load_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    with np.load(folder / "weights.npz") as file:
        return {name: file[name] for name in file.files}


def add_rows(table: Table, title: str, rows: Mapping[str, tuple[Lane, Departure]]) -> None:
    """Add one line for each run and kill, the figures of the run on its first line."""
    for way, (lane, departure) in rows.items():
        steps = departure.steps
        figures = (
            f"{steps.differing:,} of {steps.steps:,}",
            "–" if steps.first is None else f"{steps.first:,}",
            f"{departure.weights:.3g}",
            Cell("bit-exact", "good") if departure.none else Cell("different", "bad"),
        )
        for number, (kill, start) in enumerate(zip(lane.kills, lane.trail.starts[1:], strict=True)):
            first = number == 0
            table.add(
                title if first else "",
                way if first else "",
                f"{kill:,}",
                f"{start:,}",
                *(figures if first else ("", "", "", "")),
            )
        title = ""


def new_table() -> Table:
    return Table(COLUMNS)

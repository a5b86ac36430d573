"""The picture: reward curves of the three runs, the kills, and which steps are those of the undisturbed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from demo.lane import Lane

WINDOW = 20
UNDISTURBED, UNBROKEN, SB3 = "#9fb4c7", "#0b3d63", "#d1622b"
SAME, OTHER = "#4f8f63", "#d1622b"
INK, QUIET = "#222222", "#777777"
STYLE: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """The three runs of one training."""

    title: str
    undisturbed: Lane
    unbroken: Lane
    sb3: Lane


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw one column for each training and write the picture to `path`."""
    with style.context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.04, hspace=0.02)
        figure = Figure(figsize=(6.2 * len(panels), 5.4), dpi=150, layout=layout)
        grid = figure.subplots(
            3, len(panels), squeeze=False, sharex="col", gridspec_kw={"height_ratios": (12, 1, 1)}
        )
        for column, panel in enumerate(panels):
            _curves(grid[0][column], panel)
            _strip(grid[1][column], panel.undisturbed, panel.unbroken, "Unbroken")
            _strip(grid[2][column], panel.undisturbed, panel.sb3, "SB3")
            grid[0][column].set_ylabel(f"return, mean of {WINDOW} episodes")
            grid[2][column].set_xlabel("environment steps")
        figure.suptitle(
            "One training, killed three times and started again", fontsize=13, fontweight="bold", color=INK
        )
        figure.legend(handles=_legend(), loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
        figure.savefig(path)


def _curves(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.plot(
        *panel.undisturbed.trail.reward_curve(WINDOW), color=UNDISTURBED, linewidth=6, solid_capstyle="round"
    )
    axes.plot(*panel.sb3.trail.reward_curve(WINDOW), color=SB3, linewidth=1.4)
    axes.plot(*panel.unbroken.trail.reward_curve(WINDOW), color=UNBROKEN, linewidth=1.4)
    top = axes.get_ylim()[1] * 1.04
    for kill, start in zip(panel.unbroken.kills, panel.unbroken.trail.starts[1:], strict=True):
        axes.axvspan(start, kill, color="#000000", alpha=0.07, linewidth=0)
        axes.axvline(kill, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        axes.plot(kill, top, marker="X", color=INK, markersize=7, clip_on=False)
    axes.set_ylim(0, top)
    axes.set_xlim(0, int(panel.undisturbed.trail.records["step"][-1]))
    axes.tick_params(labelbottom=False)
    axes.yaxis.grid(visible=True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _strip(axes: Axes, undisturbed: Lane, other: Lane, name: str) -> None:
    """One cell for each step: the same action, observation and reward as in the undisturbed run, or not."""
    mine = {int(r["step"]): int(r["digest"]) for r in other.trail.records}
    records = undisturbed.trail.records
    same = np.array([mine.get(int(r["step"])) == int(r["digest"]) for r in records])
    steps = records["step"].astype(float)
    axes.fill_between(steps, 0, 1, where=same.tolist(), color=SAME, step="pre", linewidth=0)
    axes.fill_between(steps, 0, 1, where=(~same).tolist(), color=OTHER, step="pre", linewidth=0)
    words = (
        "every step as undisturbed"
        if same.all()
        else f"another run after step {_last_common(records, same):,}"
    )
    axes.text(
        0.985, 0.45, words, transform=axes.transAxes, ha="right", va="center", color="white", fontsize=8
    )
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5], [name])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.tick_params(axis="x", labelbottom=name == "SB3")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if name == "SB3":
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _last_common(records: NDArray[np.void], same: NDArray[np.bool_]) -> int:
    first = int(np.argmin(same))
    return int(records["step"][first - 1]) if first else 0


def _legend() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=UNDISTURBED, linewidth=6, label="undisturbed"),
        Line2D([], [], color=UNBROKEN, linewidth=1.4, label="killed, resumed by Unbroken"),
        Line2D([], [], color=SB3, linewidth=1.4, label="killed, resumed by SB3's own save and load"),
        Line2D(
            [], [], color=INK, marker="X", linestyle="none", markersize=7, label="SIGKILL (grey: done again)"
        ),
        Patch(color=SAME, label="step as undisturbed"),
        Patch(color=OTHER, label="another step"),
    ]

"""The measured part of docs/state.md, between two marks; all else on the page is written by hand. Pure, but for `write`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exactness.lost.runs import Figures, Loss
from exactness.lost.trainings import (
    BUFFER,
    COUNTERS,
    GENERATORS,
    OPTIMIZER,
    SAMPLER,
    SCHEDULER,
    STEP,
    TARGET,
    WEIGHTS,
    WORLD,
)
from exactness.provenance import told

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, DATA = DOCS / "state.md", DOCS / "state.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

TITLES = {
    WEIGHTS: "weights of policy and value",
    TARGET: "weights of the target network",
    OPTIMIZER: "state of the optimizers",
    SCHEDULER: "learning rate schedule",
    STEP: "global step",
    BUFFER: "replay or rollout buffer",
    GENERATORS: "generators of random numbers",
    WORLD: "progress inside the environments",
    COUNTERS: "episode counters",
    SAMPLER: "place of the sampler",
}


def figures() -> Figures:
    """Return what was measured last."""
    return msgspec.json.decode(DATA.read_bytes(), type=Figures)


def render(found: Figures) -> str:
    """Return the table, with what it was measured on."""
    lines = [
        "| lost | training | does otherwise from | learns otherwise from | ends apart by |",
        "|---|---|---|---|---|",
    ]
    for part, title in TITLES.items():
        lines += [_row(title, loss) for loss in found.losses if loss.part == part]
    trainings = "; ".join(
        f"{name.upper()}: {what}, {found.steps[name]:,} steps, lost at {found.at[name]:,}"
        for name, what in found.trainings.items()
    )
    sources = told(found.command, " --only", found.measured)
    return "\n".join([*lines, "", f"Undisturbed: {trainings}.", "", f"Measured by {sources}"])


def _row(title: str, loss: Loss) -> str:
    name = loss.training.upper()
    if loss.error:
        return f"| {title} | {name} | the training ends: `{loss.error.replace('|', ' ')}` | | |"
    apart = "nothing" if not loss.apart else f"{loss.apart:.0%}" if loss.apart >= 0.01 else "less than 1%"
    cells = (title, name, _step(loss.acts), _step(loss.learned), apart)
    return f"| {' | '.join(cells)} |"


def _step(number: int) -> str:
    return f"step {number:,}" if number else "never"


def inserted(text: str, found: Figures) -> str:
    """Return the page with these figures in their place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render(found)}\n{END}{after}"


def write(found: Figures) -> None:
    """Put the figures on the page."""
    PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")

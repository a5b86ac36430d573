"""`python -m exactness.lost` measures all of it and writes docs/state.json and the table in docs/state.md.

`--only dqn` measures one training, and leaves the figures of the others as they are, with their own day, commit,
machine and versions. Nothing is measured in a tree that no commit has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from exactness.lost import page
from exactness.lost.runs import Figures, measured
from exactness.lost.trainings import TRAININGS
from exactness.provenance import Uncommitted, here

LIBRARIES = ("gymnasium", "numpy", "stable-baselines3", "torch")


def main() -> int:
    """Measure, write, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m exactness.lost", description=__doc__)
    parser.add_argument("--only", action="append", default=[], choices=[one.name for one in TRAININGS])
    only = parser.parse_args().only
    before = page.figures() if page.DATA.exists() else None
    scores = dict(before.scores) if before is not None else {}
    sources = dict(before.measured) if before is not None else {}
    losses = (
        {name: [loss for loss in before.losses if loss.training == name] for name in scores} if before else {}
    )
    for training in TRAININGS:
        if only and training.name not in only:
            continue
        try:
            source = here(LIBRARIES)
            with tempfile.TemporaryDirectory() as folder:
                score, found = measured(training, Path(folder) / training.name, list(training.parts))
            if here(LIBRARIES).commit != source.commit:
                raise Uncommitted(f"{training.name}: the tree was changed while it was measured")
        except Uncommitted as error:
            parser.error(str(error))
        scores[training.name], losses[training.name], sources[training.name] = score, found, source
        print(f"{training.name}: measured", file=sys.stderr, flush=True)
    known = [training for training in TRAININGS if training.name in scores]
    figures = Figures(
        command="python -m exactness.lost",
        trainings={training.name: training.what for training in known},
        steps={training.name: training.steps for training in known},
        at={training.name: training.at for training in known},
        scores={training.name: scores[training.name] for training in known},
        measured={training.name: sources[training.name] for training in known},
        losses=[loss for training in known for loss in losses[training.name]],
    )
    page.DATA.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")
    page.write(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A small training script, without a seed, with places where tests make it misbehave."""

from __future__ import annotations

import sys
from pathlib import Path

TRAIN = """
import os, random, subprocess, sys
from pathlib import Path
import numpy as np
import unbroken

root = Path(os.environ["UNBROKEN_ROOT"])
weights, generator = np.zeros(3000), np.random.default_rng()
{before}
run = unbroken.Run("runs/tiny", every={every}, quiet=True)
run.track(weights=weights, generator=generator, {track})
for step in run.steps({steps}):
    weights += generator.normal(size=3000) * random.random()
    weights[step % 3000] = np.sort(generator.normal(size=3000)).sum()
    {inside}
print("done")
"""


def write_script(
    folder: Path,
    *,
    steps: str | int = 1500,
    every: int = 100,
    before: str = "",
    inside: str = "pass",
    track: str = "",
) -> list[str]:
    """Write the script and return the command that runs it. `track`: more arguments of `run.track`."""
    script = folder / "train.py"
    script.write_text(TRAIN.format(steps=steps, every=every, before=before, inside=inside, track=track))
    return [sys.executable, str(script)]

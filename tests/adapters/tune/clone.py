"""A trial that Tune starts with another one's checkpoint, as after an exploit. Run as a script: `ROOT STEPS`.

Prints its line. Trains for `STEPS` and is killed then; with 0 it ends in order. The configuration holds what lies
elsewhere in the memory of every process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from unbroken.adapters.tune.pointers import read_pointer
from unbroken.adapters.tune.trial import Trial
from unbroken.capture.tracked import Tracked
from unbroken.engine.settings import Settings

ROOT, STEPS = Path(sys.argv[1]), int(sys.argv[2])


class Model:
    pass


def trial(job: str) -> Trial:
    tracked = Tracked()
    tracked.add({"weights": np.zeros(3)})
    config: dict[Any, Any] = {"lr": 0.1, "model": Model(), "schedule": lambda step: step, 1: "no string"}
    return Trial(Settings(root=ROOT / "runs", job=job, every=1), tracked, config, hold=2, patience=0.0)


def train(one: Trial, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        one.engine.step(step + 1)
        one.engine.wait()


def main() -> None:
    if not (ROOT / "POINTER.json").exists():
        parent = trial("parent")
        train(parent, parent.open(None).step, 2)
        parent.pointers.write(ROOT, parent.pointers.newest())
        parent.close()
    child = trial("child")
    train(child, child.open(read_pointer(ROOT)).step, STEPS)
    if STEPS:
        os.kill(os.getpid(), signal.SIGKILL)
    child.close()


main()

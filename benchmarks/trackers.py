"""What marks in trackers cost the thread that trains, for each save: `python -m benchmarks.trackers`.

Prints microseconds of processor time of that thread, the least of five times: without a tracker in use, and with a run of W&B
that logs offline, if wandb is installed.

Not promised: what the thread that leaves the marks costs beside it.
"""

from __future__ import annotations

import os
import tempfile
import time
import timeit
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import unbroken
from unbroken.adapters.trackers.places import IN_USE
from unbroken.engine.observer import Saved
from unbroken.engine.trackers.trackers import Trackers

SAVE = Saved(step=1, blocked=0.0, durable=0.0, busy=0.0)


def cost(trackers: Trackers, times: int) -> float:
    """Return the microseconds that a save takes."""

    def one() -> None:
        trackers.saved(SAVE)
        trackers.speak()

    spent: list[float] = []
    for _ in range(5):
        spent.append(timeit.timeit(one, timer=time.thread_time, number=times))
        assert trackers.wait(60)
    return min(spent) / times * 1e6


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        run = unbroken.Run(f"{folder}/run", quiet=True)
        for _ in run.steps(1):
            pass
        assert run.report is not None
        trackers = Trackers(run.settings, segment=0, speaks=True, finders=IN_USE)
        trackers.started(run.report)
        print(f"no tracker in use  {cost(trackers, 20_000):8.1f} µs")
        if find_spec("wandb") is None:
            return
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        wandb: Any = import_module("wandb")
        wandb.init(project="p", dir=folder)
        trackers.speak()
        print(f"W&B, offline       {cost(trackers, 300):8.1f} µs")
        trackers.ended()
        wandb.finish()


if __name__ == "__main__":
    main()

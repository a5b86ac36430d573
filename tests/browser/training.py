"""Run by runs.py as a process of its own: a training of half a second, which may be killed in the middle.

`python training.py ROOT JOB [STEP]`: it is killed at that step. Its steps take no time, so it waits for each checkpoint;
else the next ones would be merged into one. At the step after a save it does not wait, and that save is lost: it has
more to write than one step takes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import unbroken

STEPS, EVERY = 200, 20
TARGET = np.linspace(-1.0, 1.0, 64)


def main(root: Path, job: str, kill_at: int | None) -> None:
    generator = np.random.default_rng(5)
    weights = np.zeros(64)
    replay = np.zeros((40_000, 64), np.float32)
    lost_save = kill_at - 1 if kill_at is not None and kill_at % EVERY == 1 else None
    with unbroken.Run(root, job=job, every=unbroken.Every(steps=EVERY), keep_last=7) as run:
        run.track(weights=weights, replay_buffer=replay, generator=generator)
        for step in run.steps(STEPS):
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % EVERY == 1:
                run.wait()
            noise = generator.normal(size=64)
            replay[step % len(replay)] = noise
            weights += 0.02 * (TARGET - weights + noise)
            loss = float(np.mean((TARGET - weights) ** 2))
            run.record(episodes=1, reward=100.0 * (1.0 - loss), loss=loss)
            if lost_save is not None and step == lost_save - 1:
                replay[:] = np.random.default_rng(9).normal(size=replay.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)

"""Run by test_pythons.py in an environment that holds the core alone: numpy and no framework.

A loop is killed in the middle and started again; its arrays must be what an undisturbed loop gives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import unbroken
from unbroken.repo.repository import Repository

KILLED_AT = 23


class Walk:
    """A training in miniature: a random walk with a generator."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)
        self.position = np.zeros(1000)

    def step(self) -> None:
        self.position += self.generator.normal(size=1000)


def train(job: str, *, kill: bool = False) -> tuple[Walk, int]:
    """Train to the end, or until the kill; return the walk and the number of steps that it took here."""
    walk = Walk()
    taken = 0
    with unbroken.Run(Path("runs"), job=job, every=unbroken.Every(steps=10), quiet=True) as run:
        run.track(walk=walk)
        for step in run.steps(50):
            if kill and step == KILLED_AT:
                wait_for_a_checkpoint("cut")
                os.kill(os.getpid(), signal.SIGKILL)
            walk.step()
            taken += 1
    return walk, taken


def wait_for_a_checkpoint(job: str) -> None:
    """Saving goes on in the background; a kill this early would come before the first save is done."""
    repository = Repository.open("runs", job)
    while not any(commit.step > 0 for commit in repository.commits()):
        time.sleep(0.001)


def main() -> None:
    if sys.argv[1:] == ["killed"]:
        train("cut", kill=True)
    killed = subprocess.run([sys.executable, __file__, "killed"], check=False)
    undisturbed, _ = train("whole")
    resumed, taken = train("cut")
    frameworks = sorted({"torch", "gymnasium", "stable_baselines3"} & set(sys.modules))
    problems = [
        *(["it was not killed"] if killed.returncode != -signal.SIGKILL else []),
        *(["it began anew"] if taken == 50 else []),
        *(["the ends differ"] if undisturbed.position.tobytes() != resumed.position.tobytes() else []),
        *([f"loaded {frameworks}"] if frameworks else []),
    ]
    print(", ".join(problems) or "equal")


if __name__ == "__main__":
    main()

"""Run by test_pythons.py in an environment that holds the core alone: numpy and no framework.

A loop is stopped in the middle and started again; its arrays must be what an undisturbed loop gives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import unbroken


class Walk:
    """A training in miniature: a random walk with a generator."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)
        self.position = np.zeros(1000)

    def step(self) -> None:
        self.position += self.generator.normal(size=1000)


def train(root: Path, job: str, *, stop_at: int | None) -> Walk:
    walk = Walk()
    run = unbroken.Run(root, job, every=unbroken.Every(steps=10))
    run.track(walk=walk)
    for step in run.steps(50):
        if step == stop_at:
            break
        walk.step()
    run.close()
    return walk


def main() -> None:
    root = Path("runs")
    whole = train(root, "whole", stop_at=None)
    train(root, "cut", stop_at=23)
    again = train(root, "cut", stop_at=None)
    frameworks = sorted({"torch", "gymnasium", "stable_baselines3"} & set(sys.modules))
    same = np.array_equal(whole.position, again.position)
    print("equal" if same and not frameworks else f"differ, loaded {frameworks}")


if __name__ == "__main__":
    main()

"""A training small enough to see through: weights, a ring of rows, a generator, a setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.state.policy import Policy


class Net:
    def __init__(self, width: int) -> None:
        self.weights = np.zeros((width, width))


class Training:
    """Everything that changes, and one `step` that changes it."""

    def __init__(self, *, width: int = 16, rate: float = 0.5, seed: int | None = 1) -> None:
        self.net = Net(width)
        self.rate = rate
        self.rows: list[float] = []
        self.generator = np.random.default_rng(seed)
        self.count = 0

    def step(self) -> None:
        draw = self.generator.standard_normal(self.net.weights.shape)
        self.net.weights += self.rate * draw
        self.rows.append(float(draw.sum()))
        self.count += 1

    def digest(self) -> tuple[bytes, list[float], int, int]:
        return (self.net.weights.tobytes(), self.rows, self.count, int(self.generator.integers(2**60)))


POLICY = Policy(components={f"{Net.__module__}:Net": "policy_weights"})


def source_of(training: Training, **options: Any) -> GraftSource:
    facts: Mapping[str, object] = {"learning_rate": training.rate}
    return GraftSource({"training": training}, policy_of_loaded(POLICY), facts=lambda: facts, **options)


def engine_of(
    training: Training, root: Path, *, segment: int = 0, trial: WarmUpTrial | None = None, **settings: Any
) -> CheckpointEngine:
    settings.setdefault("every", Every(steps=10))
    chosen = Settings(root=root, job="run", **settings)
    return CheckpointEngine(source_of(training), chosen, segment=segment, trial=trial, environment={})


def train(engine: CheckpointEngine, training: Training, *, start: int, until: int) -> None:
    """Train from `start` to `until`, asking the engine at the top of every step and waiting for saves."""
    for step in range(start, until):
        if engine.step(step):
            engine.wait()
        training.step()


def undisturbed(steps: int, **options: Any) -> tuple[bytes, list[float], int, int]:
    training = Training(**options)
    for _ in range(steps):
        training.step()
    return training.digest()


def weights(training: Training) -> NDArray[np.float64]:
    return training.net.weights

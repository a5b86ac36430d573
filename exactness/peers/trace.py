"""What a training leaves behind for the comparison: a line for each step, where it was saved, and its weights."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import torch

Stage = Literal["whole", "first", "second"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one process of one training reads and writes."""

    stage: Stage
    folder: Path

    @property
    def steps(self) -> Path:
        return self.folder / f"{self.stage}.steps"

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.stage}.npy"

    @property
    def saved(self) -> Path:
        """What the library writes; the second process reads it."""
        return self.folder / "saved"

    @property
    def resumed_at(self) -> Path:
        """The number of steps of the environment that the checkpoint stands for."""
        return self.folder / "resumed_at"

    def env(self, name: str, **options: Any) -> gymnasium.Env[Any, Any]:
        Traced.file = self.steps
        return Traced(gymnasium.make(name, **options))

    def end(self, parameters: Iterable[torch.Tensor]) -> None:
        """Keep the weights that a training has ended with."""
        flat = [parameter.detach().numpy().ravel() for parameter in parameters]
        np.save(self.weights, np.concatenate(flat))

    def restored(self, step: int, since: int) -> None:
        """Note that the second process goes on from `step` and has made `since` steps from there; those before are nothing."""
        self.resumed_at.write_text(str(step))
        lines = self.steps.read_text().splitlines(keepends=True)
        self.steps.write_text("".join(lines[len(lines) - since :]))

    def leave(self, step: int) -> None:
        """End the first process: it has saved what it had come to after `step` steps."""
        self.resumed_at.write_text(str(step))
        os._exit(0)


class Traced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down each action and what came of it, at once: the process may be killed."""

    file: ClassVar[Path]
    """Of this process, and no attribute of the environment: it must not come back with that."""

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self.env.step(action)
        line = repr(
            (np.asarray(action).tolist(), np.asarray(seen).tolist(), float(reward), terminated, truncated)
        )
        with self.file.open("a") as file:
            file.write(hashlib.sha256(line.encode()).hexdigest()[:16] + "\n")
        return seen, reward, terminated, truncated, info


def seed_all() -> None:
    """Seed every global generator, as each of these scripts does at each start."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)

"""Scripts that do to what they hold what a save or a start may have made impossible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import unbroken

from .memories import Learner


class Growing(Learner):
    """Keeps its rows in memory that it makes larger in place, by all ways that there are."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.held: dict[str, Any] = {
            "rows": torch.zeros(0, 3), "all": torch.zeros(0), "array": np.zeros(1), "bytes": bytearray(),
        }  # fmt: skip
        run.track(held=self.held)

    def step(self, step: int) -> None:
        rows: torch.Tensor = self.held["rows"]
        rows.resize_(step + 1, 3)[step] = torch.rand(3)
        torch.cat([rows[:, 0], rows[:, 1]], out=self.held["all"])
        self.held["array"].resize(step + 1)
        self.held["bytes"].append(step)
        self.learn(rows.tolist())

    def chill(self) -> None:
        self.held["rows"].zero_()

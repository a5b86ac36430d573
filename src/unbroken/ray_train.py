"""Ray Train: `unbroken.ray_train.start` in the function that a trainer runs on every worker."""

from __future__ import annotations

from unbroken.adapters.ray_train.record import read_pointer
from unbroken.adapters.ray_train.run import TrainRun, start
from unbroken.engine.schedule import Every
from unbroken.format.pointer import Pointer
from unbroken.repo.retention import Best

__all__ = ["Best", "Every", "Pointer", "TrainRun", "read_pointer", "start"]

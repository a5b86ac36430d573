"""Ray Tune: `unbroken.tune.start` in a function that Tune runs, `unbroken.tune.Trainable` for a class."""

from __future__ import annotations

from unbroken.adapters.tune.function import TrialRun, start
from unbroken.adapters.tune.pointers import read_pointer
from unbroken.adapters.tune.trainable import Trainable
from unbroken.engine.schedule import Every
from unbroken.format.pointer import Pointer
from unbroken.repo.retention import Best

__all__ = ["Best", "Every", "Pointer", "Trainable", "TrialRun", "read_pointer", "start"]

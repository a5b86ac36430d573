"""Stable-Baselines3: `from unbroken.sb3 import CheckpointCallback` in place of SB3's own."""

from __future__ import annotations

from unbroken.adapters.sb3.callback import CheckpointCallback
from unbroken.adapters.sb3.warm_up import WarmUp
from unbroken.engine.schedule import Every
from unbroken.repo.retention import Best

__all__ = ["Best", "CheckpointCallback", "Every", "WarmUp"]

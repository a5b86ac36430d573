"""PyTorch Lightning: `from unbroken.lightning import CheckpointCallback`, one callback more."""

from __future__ import annotations

from unbroken.adapters.lightning.callback import CheckpointCallback
from unbroken.engine.schedule import Every
from unbroken.repo.retention import Best

__all__ = ["Best", "CheckpointCallback", "Every"]

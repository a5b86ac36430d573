"""Exact, incremental checkpoints for reinforcement learning.

A run that is killed at any moment and started again with the same command ends as if it had never
stopped. `Run` is for loops that a person writes, `unbroken.sb3.CheckpointCallback` for Stable-Baselines3,
`CheckpointEngine` for adapters of other frameworks. Errors stand in `unbroken.errors`.

Names are loaded on first use: importing the package costs milliseconds and brings no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unbroken.adapters.loop import Run as Run
    from unbroken.buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from unbroken.capture.made_later import MadeLaterWarning as MadeLaterWarning
    from unbroken.capture.registry import register_env_capturer as register_env_capturer
    from unbroken.capture.rings import Ring as Ring
    from unbroken.capture.uncovered import UncoveredWarning as UncoveredWarning
    from unbroken.capture.untracked import UntrackedWarning as UntrackedWarning
    from unbroken.engine.engine import CheckpointEngine as CheckpointEngine
    from unbroken.engine.monitoring.target import Monitoring as Monitoring
    from unbroken.engine.report import ResumeReport as ResumeReport
    from unbroken.engine.schedule import Every as Every
    from unbroken.engine.settings import Settings as Settings
    from unbroken.errors import UnbrokenError as UnbrokenError
    from unbroken.repo.retention import Best as Best

__version__ = "0.0.1"

__all__ = [
    "Best",
    "CheckpointEngine",
    "Every",
    "MadeLaterWarning",
    "Monitoring",
    "PrioritizedReplayBuffer",
    "ResumeReport",
    "Ring",
    "Run",
    "Settings",
    "UnbrokenError",
    "UncoveredWarning",
    "UntrackedWarning",
    "register_env_capturer",
]

_HOMES = {
    "Best": "unbroken.repo.retention",
    "CheckpointEngine": "unbroken.engine.engine",
    "Every": "unbroken.engine.schedule",
    "MadeLaterWarning": "unbroken.capture.made_later",
    "Monitoring": "unbroken.engine.monitoring.target",
    "PrioritizedReplayBuffer": "unbroken.buffers.prioritized",
    "ResumeReport": "unbroken.engine.report",
    "Ring": "unbroken.capture.rings",
    "Run": "unbroken.adapters.loop",
    "Settings": "unbroken.engine.settings",
    "UnbrokenError": "unbroken.errors",
    "UncoveredWarning": "unbroken.capture.uncovered",
    "UntrackedWarning": "unbroken.capture.untracked",
    "register_env_capturer": "unbroken.capture.registry",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Where the matrix ran: processor, kernel, versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from benchmarks.machine import processor
from exactness.records import Machine

PACKAGES = (
    "stable_baselines3", "sb3_contrib", "gymnasium", "torch", "numpy", "mujoco", "ale-py", "box2d", "minigrid",
    "pettingzoo", "supersuit",
)  # fmt: skip


def describe() -> Machine:
    """Return what there is to know about this machine."""
    return Machine(
        cpu=processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"

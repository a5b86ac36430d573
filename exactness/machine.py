"""Where the matrix ran: processor, kernel, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from exactness.records import Machine

PACKAGES = (
    "stable_baselines3", "sb3_contrib", "gymnasium", "torch", "numpy", "mujoco", "ale-py", "box2d", "minigrid",
    "pettingzoo", "supersuit",
)  # fmt: skip


def describe() -> Machine:
    """Return what there is to know about this machine."""
    return Machine(
        cpu=_processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    )


def commit(root: Path) -> str:
    """Return the commit that `root` is at, with a `+` where the code differs from it; "" if it cannot be told."""
    git = ["git", "-C", str(root)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "src", "exactness"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"

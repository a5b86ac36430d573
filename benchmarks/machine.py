"""Where a benchmark ran: processor, kernel, file system, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from benchmarks.records import Machine

PACKAGES = (
    "unbroken",
    "torch",
    "numpy",
    "stable_baselines3",
    "torchrl",
    "tensordict",
    "orbax-checkpoint",
    "jax",
    "safetensors",
    "ale-py",
)


def describe(folder: Path) -> Machine:
    """Return what there is to know about this machine and the disk below `folder`."""
    return Machine(
        cpu=processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        kernel=platform.release(),
        file_system=_file_system(folder),
        versions={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    )


def processor() -> str:
    """Return the name of the processor, or its kind where it tells no name."""
    name = _field("/proc/cpuinfo", "model name")
    return platform.machine() if name == "unknown" else name


def commit(root: Path, package: str = "benchmarks") -> str:
    """Return the commit that `root` is at, with a `+` where `src` or `package`, which measures, differ from it; "" if it
    cannot be told."""
    git = ["git", "-C", str(root)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "src", package], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _file_system(folder: Path) -> str:
    best, kind = Path(), "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, at, found, *_ = line.split()
        mounted = Path(at)
        if folder.resolve().is_relative_to(mounted) and len(mounted.parts) >= len(best.parts):
            best, kind = mounted, found
    return kind

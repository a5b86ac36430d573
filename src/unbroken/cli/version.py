"""`unbroken --version`: what a report of a problem has to name.

Versions are read from what the environment says is installed. No library is imported: to import all of them takes
many seconds, and one that is broken would hide the version that tells why.

Not promised: that a running training uses these. What it ran with stands in its checkpoints (`unbroken show`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

NEEDED = ("numpy", "msgspec", "blake3", "zstandard", "typer", "rich", "pydantic", "pyyaml")
"""What the package itself depends on."""
OPTIONAL = (
    "torch", "gymnasium", "stable-baselines3", "sb3-contrib", "rl-zoo3", "ray", "lightning", "pytorch-lightning",
    "nemo-gym", "safetensors", "obstore", "prometheus-client", "tensorboard", "wandb", "mlflow", "mlflow-skinny", "plotly", "jinja2",
    "fastapi", "uvicorn", "ale-py", "mujoco", "minigrid",
)  # fmt: skip
"""What it works with where it is there."""

PART: Mapping[str, str] = {"mlflow": "mlflow-skinny"}
"""Distribution -> a part of it that is enough: where the part is there, it is not missing."""


def installed(names: tuple[str, ...]) -> dict[str, str | None]:
    """Return the version of each distribution, None where it is not installed."""
    return {name: _version(name) for name in names}


def words() -> str:
    """Return the versions as lines: Unbroken's own first, as scripts read it, then all others."""
    interpreter = (
        f"{platform.python_implementation()}, {platform.system()} {platform.release()} {platform.machine()}"
    )
    found = {**installed(NEEDED), **installed(OPTIONAL)}
    missing = [
        name for name, version in found.items() if version is None and not found.get(PART.get(name, ""))
    ]
    return "\n".join(
        [
            f"unbroken {_version('unbroken') or 'that is not installed'}",
            f"python {platform.python_version()} ({interpreter})",
            *_lines(found),
            *([f"not installed: {', '.join(missing)}"] if missing else []),
        ]
    )


def _lines(found: Mapping[str, str | None]) -> list[str]:
    return [f"{name} {version}" for name, version in found.items() if version is not None]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

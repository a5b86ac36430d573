"""Which versions stand behind what a server does: told in its status, and written where its log begins."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from unbroken.adapters.nemo_gym import control


def versions() -> dict[str, str]:
    """Return the versions that tell one environment from another."""
    found = {"python": platform.python_version(), "protocol": control.VERSION}
    for package in ("unbroken", "nemo-gym"):
        if known := _version(package):
            found[package] = known
    return found


@cache
def _version(package: str) -> str:
    # Kept: to read a package's metadata takes milliseconds, and in a cut all servers stand still for them.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return ""

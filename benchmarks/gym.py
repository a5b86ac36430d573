"""Sessions of NeMo Gym: what their checkpoints and their log cost, on real servers over HTTP.

Runs in the environment that `scripts/install-gym` makes (`benchmarks.gym_python` finds it): servers of NeMo Gym need a newer Python than
the rest, and have none of what the other parts import.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from benchmarks import gym_calls, gym_saves
from benchmarks.gym_servers import COUNTER, WORKPLACE, farm
from benchmarks.records import GymRow, Sizes

PACKAGES = ("nemo-gym", "fastapi", "uvicorn", "pandas")


def measure(folder: Path, sizes: Sizes) -> GymRow:
    """Measure calls, saves and restores."""
    os.environ["UNBROKEN_KEY"] = os.urandom(32).hex()  # not the user's own
    with farm(folder / "gym") as found:
        calls = gym_calls.measure(found, sizes)
        servers = [
            gym_saves.measure(found, folder, kind, sessions=sessions, changed=changed, sizes=sizes)
            for kind, sessions, changed in (
                (COUNTER, sizes.counters, sizes.changed_counters),
                (WORKPLACE, sizes.workplaces, sizes.changed_workplaces),
            )
        ]
    return GymRow(
        calls=calls,
        servers=servers,
        versions={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
        verified=all(server.verified for server in servers),
    )

"""Starts trainings that log to a tracker, and kills them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.monitoring.prometheus import PATIENCE

PROJECT = Path(__file__).parents[2]
TOTAL, PAUSE, CHECKPOINT = 40, 25, 20
"""Steps in all, the step at which the first process is killed, and that of the newest checkpoint by then."""


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def command(kind: str, root: Path, *pause: int) -> list[str]:
    script = Path(__file__).with_name("tracked.py")
    return [sys.executable, str(script), kind, str(root), str(TOTAL), *map(str, pause)]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    paths = (str(PROJECT / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


def killed(kind: str, root: Path, until: Callable[[], object] = lambda: None, **variables: str) -> None:
    """Have a training killed by SIGKILL in the middle, once `until` has returned."""
    process = subprocess.Popen(
        command(kind, root, PAUSE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(variables)
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"paused\n"
        until()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -9


def finished(kind: str, root: Path, **variables: str) -> tuple[str, str]:
    """Have a training go on to its end; return the state that it came to, and what it has said."""
    done = subprocess.run(
        command(kind, root), env=environment(variables), check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1], done.stderr

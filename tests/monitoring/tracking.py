"""Starts trainings that log to a tracker, and kills them."""

from __future__ import annotations

import os
import signal
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


SCRIPT = str(Path(__file__).with_name("tracked.py"))


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    paths = (str(PROJECT / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


def killed(
    kind: str, root: Path, until: Callable[[], object] = lambda: None, *, variables: Mapping[str, str] = {}
) -> None:
    """Have a training killed by SIGKILL in the middle, once `until` has returned."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, kind, str(root), str(TOTAL), str(PAUSE)],
        stdout=subprocess.PIPE, env=environment(variables),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"paused ")
        until()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -9


def finished(kind: str, root: Path, *, variables: Mapping[str, str] = {}) -> tuple[str, str]:
    """Have a training go on to its end; return the state that it came to, and what it has said."""
    done = subprocess.run(
        [sys.executable, SCRIPT, kind, str(root), str(TOTAL), "-1"],
        env=environment(variables), check=True, capture_output=True, text=True,
    )  # fmt: skip
    return _state(done.stdout.splitlines()[-1]), done.stderr


class Forked:
    """The same, by processes that one forks which has loaded `libraries`."""

    def __init__(self, *libraries: str, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment(variables), text=True,
        )  # fmt: skip
        self._say(" ".join(("unbroken", *libraries)))

    def killed(self, kind: str, root: Path, until: Callable[[], object] = lambda: None) -> None:
        """See the function."""
        self._say(f"{kind} {root} {TOTAL} {PAUSE}")
        word, _, process = self._heard().partition(" ")
        assert word == "paused"
        try:
            until()
        finally:
            os.kill(int(process), signal.SIGKILL)
        assert self._heard() == "gone -9"

    def finished(self, kind: str, root: Path) -> str:
        """See the function; returns the state."""
        self._say(f"{kind} {root} {TOTAL} -1")
        state = _state(self._heard())
        assert self._heard() == "gone 0"
        return state

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _heard(self) -> str:
        """Return the next of its own lines: libraries may print others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("paused ", "ended ", "gone ")):
                return line.strip()
        raise AssertionError("it has ended")


def _state(line: str) -> str:
    word, _, state = line.partition(" ")
    assert word == "ended"
    return state

"""Starts the training script, and kills it at a call of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unbroken
from unbroken.nemo_gym import Gym

from .stand_in import TOKEN, Stack

SCRIPT = Path(__file__).parent / "training_script.py"


def start(root: Path, stack: Stack, steps: int, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), json.dumps(stack.urls), str(steps), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "UNBROKEN_KEY": "ab" * 32},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(root: Path, stack: Stack, steps: int, *options: str) -> tuple[dict[str, Any], str]:
    """Let a training come to its end; return what it came to, and what it said."""
    process = start(root, stack, steps, *options)
    out, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(out)
    return found, said


def kill_at(call: int, root: Path, stack: Stack, steps: int, *options: str) -> None:
    """Kill a training while the model has its call number `call` before it, and then let the model answer."""
    hold = _Hold(call)
    stack.model.before = lambda _, number: hold(number)
    _kill(hold, root, stack, steps, *options)
    stack.model.before = lambda rollout, number: None


def kill_in(operation: str, number: int, root: Path, stack: Stack, steps: int, *options: str) -> None:
    """Kill a training while the agent has a control operation before it, when it comes for the `number`-th time."""
    hold = _Hold(number)
    stack.agent.before_control = lambda name, n: hold(n) if name == operation else None
    _kill(hold, root, stack, steps, *options)
    stack.agent.before_control = lambda name, n: None


class _Hold:
    """Holds up whoever comes with a number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number == self._number:
            self.arrived.set()
            self.go_on.wait(600)


def _kill(hold: _Hold, root: Path, stack: Stack, steps: int, *options: str) -> None:
    process = start(root, stack, steps, *options)
    try:
        assert hold.arrived.wait(300), killed(process)
    finally:
        killed(process)
        hold.go_on.set()


def killed(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill a training, if it has not ended, and return what it has said."""
    process.kill()
    return process.communicate(timeout=60)


class Training:
    """A training in this process. To the servers, and to the run, each one is as good as a new process."""

    def __init__(self, root: Path, stack: Stack, *, sync_timeout: float = 300) -> None:
        self.gym = Gym(stack.urls, token=TOKEN, sync_timeout=sync_timeout, patience=300)
        self.run = unbroken.Run(root, every=1, quiet=True)
        self.run.track(gym=self.gym)
        self.steps: Iterator[int] = iter(())

    def begin(self) -> int:
        self.steps = iter(self.run.steps(1000))
        return next(self.steps)

    def step(self) -> int:
        """Go on to the next step, and wait until its checkpoint is durable and the servers know."""
        found = next(self.steps)
        self.wait()
        return found

    def wait(self) -> None:
        self.run.wait()
        self.gym.coordinator.wait_told()

    def leave(self) -> None:
        """End as a process that is killed: nothing more is saved."""
        self.run.close()
        self.gym.close()

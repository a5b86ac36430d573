"""Starts the training script, and kills it at a call of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from .stand_in import Stack

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
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(out)
    return found, said


def kill_at(call: int, root: Path, stack: Stack, steps: int, *options: str) -> None:
    """Kill a training while the model has its call number `call` before it, and then let the model answer."""
    arrived, go_on = threading.Event(), threading.Event()

    def before(_: str, number: int) -> None:
        if number == call:
            arrived.set()
            go_on.wait(60)

    stack.model.before = before
    process = start(root, stack, steps, *options)
    try:
        assert arrived.wait(60), process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate(timeout=60)
        go_on.set()
        stack.model.before = lambda rollout, number: None

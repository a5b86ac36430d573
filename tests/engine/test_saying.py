"""Where nobody can be told anything, a training goes on and ends as where somebody can."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from unbroken.engine.saying import say

SOURCE = Path(__file__).parents[2] / "src" / "unbroken"
SCRIPT = """
import os, sys
import numpy as np
import unbroken
weights, rng = np.zeros(3), np.random.default_rng(1)
run = unbroken.Run(sys.argv[1], every=2, monitoring=unbroken.Monitoring(port=0))
run.track(weights=weights, rng=rng)
for step in run.steps(5):
    weights += rng.normal(size=3)
    if step == int(sys.argv[2]):
        os._exit(9)
print(weights.tobytes().hex())
"""


@contextmanager
def nobody() -> Generator[int]:
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full() -> Generator[int]:
    """A file on a disk without room."""
    with open("/dev/full", "wb") as file:
        yield file.fileno()


def started(root: Path, error: Any = subprocess.DEVNULL, kill: int = -1, before: str = "") -> tuple[int, str]:
    """Start the script once; return its status and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", before + SCRIPT, str(root), str(kill)],
        stdout=subprocess.PIPE, stderr=error, text=True, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("place", [full, nobody])
def test_a_training_whose_lines_nobody_takes_goes_on_as_any(place: Callable[[], Any], tmp_path: Path) -> None:
    status, undisturbed = started(tmp_path / "U")
    assert status == 0
    with place() as error:
        assert started(tmp_path / "R", error, kill=3) == (9, "")
        assert started(tmp_path / "R", error) == (0, undisturbed)


def test_a_training_without_standard_error_goes_on_as_any(tmp_path: Path) -> None:
    status, undisturbed = started(tmp_path / "U")
    assert (
        started(tmp_path / "N", before="import sys; sys.stderr = None")
        == (status, undisturbed)
        == (0, undisturbed)
    )


def test_a_stream_without_the_letters_gets_them_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(content, encoding="ascii", line_buffering=True))
    say("step 1 · exact", "next")
    assert content.getvalue() == b"step 1 \\xb7 exact\nnext\n"
    sys.stderr.close()
    say("to nobody")


def test_all_lines_go_that_way() -> None:
    writes = [
        str(path.relative_to(SOURCE))
        for layer in ("engine", "capture", "adapters", "buffers", "repo", "store", "state")
        for path in sorted((SOURCE / layer).rglob("*.py"))
        if path.name != "saying.py"
        if "sys.stderr.write" in path.read_text(encoding="utf-8") and "launch" not in path.parts  # commands
    ]
    assert writes == []

"""Starts the ranks of `sampled_script`, reads what they tell, and kills them where they are held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from unbroken.repo.repository import Repository

SCRIPT = Path(__file__).parent / "sampled_script.py"
PATIENCE = 600.0
Told = list[dict[str, Any]]


def finish(root: Path, size: int, **options: Any) -> list[Told]:
    """Let all ranks come to their end; return what each has told."""
    ranks = [_start(root, rank, size, options) for rank in range(size)]
    ended = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, [said for _, said in ended]
    return [[json.loads(line) for line in out.splitlines()] for out, _ in ended]


def killed(root: Path, size: int, saved: int, **options: Any) -> list[Told]:
    """Send SIGKILL to all ranks when they have come to the step `hold` and the checkpoint of `saved` is there."""
    hold = Path(f"{root}.hold")
    hold.touch()
    ranks = [_start(root, rank, size, options) for rank in range(size)]
    told: list[Told] = [[] for _ in ranks]
    try:
        for rank, lines in zip(ranks, told, strict=True):
            assert rank.stdout is not None
            for line in rank.stdout:
                lines.append(json.loads(line))
                if lines[-1].get("at") == options["hold"]:
                    break
            else:
                raise AssertionError(rank.communicate()[1])
        deadline = time.monotonic() + PATIENCE
        while steps_of(root)[0] != saved:
            assert time.monotonic() < deadline, steps_of(root)
            time.sleep(0.01)
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.communicate()
        hold.unlink()
    assert [rank.returncode for rank in ranks] == [-9] * size
    return told


def ids(told: Told, *, start: int = 0, until: int = 2**62) -> list[list[int]]:
    """Return the samples that a rank got, of each step."""
    return [line["ids"] for line in told if start <= line.get("step", -1) < until]


def steps_of(root: Path) -> list[int]:
    return [commit.step for commit in Repository.open(root, root.name).commits()]


def _start(root: Path, rank: int, size: int, options: dict[str, Any]) -> subprocess.Popen[str]:
    launcher = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), json.dumps(options)],
        env={**os.environ, **launcher, "OMP_NUM_THREADS": "1", "UNBROKEN_ROOT": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

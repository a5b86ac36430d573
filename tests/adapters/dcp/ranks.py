"""Runs the ranks of a script in processes of their own, which meet over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOP = HERE.parent.parent.parent
ANY = object()
"""As an expected code: however the process ends."""


@dataclass(frozen=True)
class Ended:
    """How one rank has ended. What it prints is one JSON value a line."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> dict[str, Any]:
        """The last value printed."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def run(
    folder: Path, script: str, *words: object, size: int = 2, expect: Collection[object] | None = None
) -> list[Ended]:
    """Run `size` ranks of a script to their ends. `expect` are their codes, 0 if left out."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(TOP),
        "UNBROKEN_KEY": "a key of these tests, and of nothing else",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(rank), str(size), str(meeting), *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ends = [rank.communicate(timeout=600) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    found = [Ended(rank.returncode, *end) for rank, end in zip(ranks, ends, strict=True)]
    for end, code in zip(found, expect or [0] * size, strict=True):
        assert code is ANY or end.code == code, "\n".join(f"{e.code}: {e.err}" for e in found)
    return found

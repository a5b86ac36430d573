"""Starts the ranks of a script over gloo as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engine.ranks import LAUNCHER
from tests.store.servers import free_port

SECONDS = 600.0
"""So long a test waits for a rank that should have come to its end."""


@contextmanager
def ranks(
    script: Path,
    root: Path,
    *,
    size: int = 2,
    of: Mapping[int, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Generator[list[subprocess.Popen[str]]]:
    """Start all ranks with these options of the script, `of` giving some of them options of their own."""
    port = str(free_port())
    plain = {key: value for key, value in os.environ.items() if key not in LAUNCHER}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(root), json.dumps({**options, **(of or {}).get(rank, {})})],
            env={
                **plain, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def told(process: subprocess.Popen[str], *, status: int = 0) -> dict[str, Any]:
    """Wait until a rank ends in this way, and return what it has told."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == status, (out, err)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def finish(script: Path, root: Path, **options: Any) -> list[dict[str, Any]]:
    """Start all ranks; each must come to the end of its training. Return what they have told."""
    with ranks(script, root, **options) as processes:
        return [told(process) for process in processes]


def killed(script: Path, root: Path, rank: int, **options: Any) -> None:
    """Start all ranks, wait until this one has killed itself, and kill the others then, as a launcher does."""
    with ranks(script, root, **options) as processes:
        _, err = processes[rank].communicate(timeout=SECONDS)
        assert processes[rank].returncode == -9, err

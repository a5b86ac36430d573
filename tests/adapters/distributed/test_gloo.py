"""Two ranks over gloo: saves by the clock of rank 0, a kill, and a rank that does not come to agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import LAUNCHER, assert_whole, differing, repository
from tests.store.servers import free_port

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "gloo_script.py"


@contextmanager
def ranks(
    root: Path, *, total: int = 120, die: int = -1, late: int = -1
) -> Generator[list[subprocess.Popen[str]]]:
    """Start both ranks; `die` is the step at which rank 1 kills itself."""
    port = str(free_port())
    plain = {key: value for key, value in os.environ.items() if key not in LAUNCHER}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root), str(total), str(die if rank == 1 else -1), str(late)],
            env={
                **plain, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def told(process: subprocess.Popen[str], *, status: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def test_a_clock_of_rank_0_saves_on_all_ranks_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    with ranks(tmp_path / "straight") as processes:
        straight = [told(process) for process in processes]
    assert len(repository(tmp_path / "straight").commits()) == 3
    root = tmp_path / "run"
    with ranks(root, die=90) as processes:
        processes[1].communicate(timeout=60)
    assert_whole(root)
    with ranks(root) as processes:
        resumed = [told(process) for process in processes]
    assert 0 < resumed[0]["started"] == resumed[1]["started"] <= 90
    for one, other in zip(straight, resumed, strict=True):
        assert one["weights"] == other["weights"]
        assert one["draws"] == other["draws"]
    assert differing(root, tmp_path / "straight") == []
    manifest = repository(root).manifest(repository(root).commits()[0])
    assert {"policy_weights", "optimizer_states", "rng_states@rank1"} <= {
        entry.component for entry in manifest.documents.values()
    }


def test_a_rank_that_does_not_come_to_agree_is_an_error_and_no_hang(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ranks(root, late=50) as processes:
        answer = told(processes[1], status=3)
    assert answer["error"] == "RankMissing"
    assert_whole(root)

"""A signal to a whole process group, as Ctrl-C and batch systems send it: environments in processes of their own leave it
to their trainer, which saves them and ends; and they end with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "group_script.py"
PREEMPTED = 75
CASES = [
    pytest.param("async", "SIGTERM", 10, id="async-ten-SIGTERM"),
    pytest.param("async", "SIGINT", 1, id="async-ctrl-c"),
    pytest.param("sb3-fork", "SIGTERM", 1, id="sb3-fork-SIGTERM"),
    pytest.param("sb3-forkserver", "SIGTERM", 1, id="sb3-forkserver-SIGTERM", marks=pytest.mark.exactness),
    pytest.param("sb3-fork", "SIGINT", 1, id="sb3-fork-ctrl-c", marks=pytest.mark.exactness),
    pytest.param("sb3-fork", "SIGUSR1", 10, id="sb3-fork-ten-SIGUSR1", marks=pytest.mark.exactness),
    pytest.param("sb3-spawn", "SIGTERM", 1, id="sb3-spawn-SIGTERM", marks=pytest.mark.exactness),
]


def start(kind: str, folder: Path, *told: str) -> subprocess.CompletedProcess[str]:
    """Start the script in a group of its own. Returns once nothing of it has its output open any more."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), kind, str(folder / "runs"), str(folder / "out.json"), *told],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        start_new_session=True,
        check=False,
    )


@pytest.mark.parametrize(("kind", "name", "count"), CASES)
def test_a_signal_to_the_whole_group_saves_and_the_next_start_ends_as_if_there_had_been_none(
    kind: str, name: str, count: int, tmp_path: Path
) -> None:
    undisturbed, run = tmp_path / "U", tmp_path / "R"
    undisturbed.mkdir()
    run.mkdir()
    whole = start(kind, undisturbed)
    assert whole.returncode == 0, whole.stderr
    told = start(kind, run, name, str(count))
    status = -signal.SIGINT if name == "SIGINT" else PREEMPTED
    assert told.returncode == status, told.stderr
    assert f"{name}: step " in told.stderr, told.stderr
    assert not (run / "out.json").exists()
    again = start(kind, run)
    assert again.returncode == 0, again.stderr
    assert "goes on at step" in again.stderr
    assert json.loads((run / "out.json").read_text()) == json.loads((undisturbed / "out.json").read_text())

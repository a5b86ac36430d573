"""I1: a kill during a save leaves a file that cannot be read, and takes the one before along where its name is
used again. Right: after a kill at any moment every checkpoint verifies, and the newest is at most two saves old.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")

HERE = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 1), pytest.param(60, 2, marks=pytest.mark.exactness)], ids=["few", "many"]
)
def test_a_kill_during_a_save_leaves_a_complete_checkpoint(kills: int, seed: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-m", "tests.adapters.lightning.killed_saves",
            str(tmp_path), str(kills), str(seed),
        ],
        cwd=HERE, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == kills
    reached = 0
    for kill in found:
        told, committed = kill["told"], kill["committed"]
        assert kill["faults"] == []
        assert committed, "some checkpoint is there from the first save on"
        assert committed[0] >= told[-3], "of the saves that were begun all but the last two are there"
        assert told[0] <= reached + 1 or reached == 0, "each start goes on from the newest one"
        reached = committed[0]
    assert reached > found[0]["committed"][0], "the run has got on"

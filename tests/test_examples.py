"""`unbroken prove` with twenty kills over long runs: all four kinds of environments' state, on- and off-policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("example", "timesteps"), [("ppo_lunarlander", 40_000), ("sac_hopper", 5_000), ("qrdqn_minigrid", 6_000)]
)
def test_twenty_kills_leave_no_trace(example: str, timesteps: int, tmp_path: Path) -> None:
    proof = subprocess.run(
        [
            sys.executable, "-m", "unbroken", "prove", "--kills", "20", "--json", "--",
            sys.executable, str(EXAMPLES / f"{example}.py"), "--timesteps", str(timesteps), "--save-freq", "50",
        ],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert proof.returncode == 0, f"{proof.stdout}\n{proof.stderr}"
    result = json.loads(proof.stdout)
    assert result["verdict"] == "equal"
    assert len(result["kills"]) == 20

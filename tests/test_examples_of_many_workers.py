"""`unbroken prove` over the examples with many workers, and the one with Lightning: they end alike, byte for byte."""

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
    ("example", "needs", "options"),
    [
        ("lightning_dqn", "lightning", ["--steps", "300", "--save-every", "20"]),
        ("rllib_ppo", "ray", []),
        ("ray_train_ppo", "ray", ["--iterations", "20"]),
    ],
)
def test_an_example_ends_as_if_nothing_had_happened(
    example: str, needs: str, options: list[str], tmp_path: Path
) -> None:
    pytest.importorskip(needs)
    proof = subprocess.run(
        [
            sys.executable, "-m", "unbroken", "prove", "--kills", "2", "--keep", str(tmp_path / "kept"), "--json", "--",
            sys.executable, str(EXAMPLES / f"{example}.py"), *options,
        ],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert proof.returncode == 0, f"{proof.stdout}\n{proof.stderr}"
    result = json.loads(proof.stdout)
    assert result["verdict"] == "equal"

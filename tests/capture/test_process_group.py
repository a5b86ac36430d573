"""Three processes that train one module: what a restart costs in low bits is measured, and said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "parallel_script.py"


def test_a_restart_that_adds_up_in_another_order_is_named() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPT), str(rank), port],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    told = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    found = json.loads(told[0])
    assert found["kept"] == {"same": True, "inexact": {}}
    assert not found["refilled"]["same"]
    assert list(found["refilled"]["inexact"]) == ["policy_weights"]
    assert "find_unused_parameters=True" in found["refilled"]["inexact"]["policy_weights"]

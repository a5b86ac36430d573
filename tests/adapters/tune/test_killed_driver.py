"""A driver that is killed: every trial goes on from its own newest checkpoint and ends as if undisturbed.

Tune writes its own record every so many seconds, and here so seldom that it knows of no checkpoint: what Tune
alone would do is start all trials anew (faults L8, I7).
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from unbroken.state.diff import compare

from .drive import drive, final_states, trials

pytest.importorskip("ray.tune")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow

KILLED = random.Random(4).randrange(9, 28)
EVERY = 4
# Else it hangs on the machine's speed what the record knows when the driver is killed.
SELDOM = {"TUNE_GLOBAL_CHECKPOINT_S": "100000"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    drive("cartpole.py", str(root), "-")
    return root / "checkpoints"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("killed")
    drive("cartpole.py", str(root), "-", expect=-9, KILL_AT=str(KILLED), **SELDOM)
    return root


def differing(one: Path, other: Path) -> set[str]:
    pairs = list(zip(final_states(one), final_states(other), strict=True))
    assert len(pairs) == 3  # as many trials as were asked for, also after a restore (fault L6)
    return {difference.place for a, b in pairs for difference in compare(a, b)}


def test_all_trials_end_as_if_nothing_had_happened(undisturbed: Path, killed: Path, tmp_path: Path) -> None:
    root = tmp_path / "resumed"
    shutil.copytree(killed, root)
    # One that was killed before its first checkpoint has none, and begins.
    newest = [commits[0].step for run in trials(root / "checkpoints") if (commits := run.commits())]
    assert max(newest) >= KILLED // EVERY * EVERY  # which is durable before the report of the step
    told = drive("cartpole.py", str(root), "-")
    assert "trials 3 errors 0" in told
    for step in newest:
        assert f"goes on at step {step} from the newest checkpoint" in told
    assert "Tune's record knows no checkpoint" in told
    assert differing(undisturbed, root / "checkpoints") == set()


@pytest.mark.exactness
def test_with_a_part_left_cold_they_would_not(undisturbed: Path, killed: Path, tmp_path: Path) -> None:
    root = tmp_path / "cold"
    shutil.copytree(killed, root)
    drive("cartpole.py", str(root), "optimizer")
    assert any(place.startswith("policy/") for place in differing(undisturbed, root / "checkpoints"))

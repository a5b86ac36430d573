"""Two whole programs in one file each, as CleanRL writes them: what Unbroken adds to them is few lines, and enough.

Undisturbed, killed for real and resumed, and resumed with one part left cold: only the second may end as the first.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from unbroken.capture.volatile import volatile_places
from unbroken.engine.changes import within
from unbroken.repo.repository import Repository
from unbroken.state.diff import LeafDifference, compare
from unbroken.state.snapshot import Snapshot

EXAMPLES = Path(__file__).parents[2] / "examples" / "cleanrl"
SCRIPT = Path(__file__).parent / "loop_script.py"
FEWER_THAN = 15

PPO = "cleanrl/ppo"
DQN = "cleanrl/dqn_prioritized"
ARGUMENTS = {
    PPO: ["--iterations", "9", "--num-steps", "32", "--save-every", "2", "--num-envs", "2"],
    # The rows of the ring come round: at step 450 the oldest of 300 are overwritten.
    DQN: ["--timesteps", "600", "--save-every", "150", "--buffer-size", "300", "--learning-starts", "100"],
}
KILLED = {PPO: 7, DQN: 500}
SAVED = {PPO: 6, DQN: 450}


def start(
    example: str, root: Path, *more: str, kill_at: int = -1, cold: str = "-", expect: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [
            sys.executable, str(SCRIPT), f"{kill_at},settled", cold,
            *ARGUMENTS[example], "--save-path", str(root), *more,
        ],
        env={**os.environ, "EXAMPLE": example, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(abs(kill_at))},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done


UNSEEDED = ("observation_space/_np_random", "generators/value/python")
"""Generators that a program neither seeds nor draws from; each process seeds them from the system. PPO does not draw
from the space of actions either."""


def differing(example: str, root: Path, other: Path) -> list[LeafDifference]:
    """Return what differs at the ends of two runs, without what a clock tells."""
    ends = [_end(root), _end(other)]
    clocks = frozenset[str]().union(*map(volatile_places, ends))
    unused = UNSEEDED[:1] if example == DQN else (*UNSEEDED, "action_space/_np_random")
    return [
        leaf
        for leaf in compare(*ends)
        if not within(leaf.place, clocks) and not any(part in leaf.place for part in unused)
    ]


def _end(root: Path) -> Snapshot:
    repository = Repository.open(root, root.name)
    newest = repository.commits()[0]
    assert newest.position == "end"
    return repository.load(newest)


def episodes(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("global_step")]


@pytest.mark.parametrize("example", [PPO, DQN])
def test_it_is_fewer_than_fifteen_lines_away_from_the_program_without(example: str) -> None:
    plain, ours = (
        (EXAMPLES.parent / f"{example}{kind}.py").read_text().splitlines() for kind in ("_plain", "")
    )
    differ = difflib.SequenceMatcher(
        None, plain[1:], ours[1:], autojunk=False
    )  # behind what it says of itself
    changed = sum(max(b - a, d - c) for tag, a, b, c, d in differ.get_opcodes() if tag != "equal")
    assert 0 < changed < FEWER_THAN


@pytest.mark.parametrize(
    ("example", "more", "cold"),
    [
        (PPO, (), "optimizer"),
        pytest.param(PPO, ("--asynchronous",), "optimizer", marks=pytest.mark.exactness),
        (DQN, (), "trees"),
        pytest.param(DQN, (), "buffer", marks=pytest.mark.exactness),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_killed_and_started_again_it_ends_as_if_it_had_never_stopped(
    tmp_path: Path, example: str, more: tuple[str, ...], cold: str
) -> None:
    """K6: a recipe that is incomplete. Right: fewer than 15 lines, bit-equal."""
    whole, killed, chilled = (tmp_path / name / "run" for name in ("whole", "killed", "chilled"))
    undisturbed = start(example, whole, *more)
    start(example, killed, *more, kill_at=KILLED[example], expect=-9)
    chilled.parent.mkdir()
    shutil.copytree(killed, chilled)
    resumed = start(example, killed, *more)
    assert f"goes on at step {SAVED[example]}" in resumed.stderr
    assert "not exact" not in resumed.stderr
    assert "UntrackedWarning" not in resumed.stderr
    assert differing(example, whole, killed) == []
    told = episodes(resumed.stdout)
    assert told
    assert episodes(undisturbed.stdout)[-len(told) :] == told
    start(example, chilled, *more, cold=cold)
    weights = "agent/" if example == PPO else "policy/"
    assert any(leaf.place.startswith(weights) for leaf in differing(example, whole, chilled))

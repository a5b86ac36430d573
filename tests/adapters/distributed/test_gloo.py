"""Two ranks over gloo: saves by the clock of rank 0, a kill, and a rank that does not come to agree."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import assert_whole, differing, repository, steps_of

from .launch import finish, killed, ranks, told

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "gloo_script.py"
COLD = {
    "weights": ((0, 1), "weights", (0, 1)),
    "optimizer": ((0, 1), "moments", (0, 1)),
    "generator": ((1,), "generator", (1,)),
    "global generators": ((1,), "global generators", (1,)),
    "vars": ((1,), "seen", (1,)),
}
"""On which ranks a part is left as new, where it shows at the end, and on which ranks."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """An undisturbed run, and what its ranks have told."""
    root = tmp_path_factory.mktemp("straight") / "run"
    return root, finish(SCRIPT, root)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed and not started again."""
    root = tmp_path_factory.mktemp("cut") / "run"
    killed(SCRIPT, root, 1, of={1: {"die": 45}})
    assert_whole(root)
    assert 0 < steps_of(root)[0] <= 45
    return root


def test_a_clock_of_rank_0_saves_on_all_ranks_and_a_kill_changes_nothing(
    straight: tuple[Path, list[dict[str, Any]]], cut: Path, tmp_path: Path
) -> None:
    assert len(steps_of(straight[0])) == 3
    root = tmp_path / "run"
    shutil.copytree(cut, root)
    resumed = finish(SCRIPT, root)
    assert [one.pop("started") for one in resumed] == [steps_of(cut)[0]] * 2
    assert resumed == [{k: v for k, v in one.items() if k != "started"} for one in straight[1]]
    assert differing(root, straight[0]) == []
    manifest = repository(root).manifest(repository(root).commits()[0])
    assert {"policy_weights", "optimizer_states", "rng_states@rank1"} <= {
        entry.component for entry in manifest.documents.values()
    }


@pytest.mark.parametrize(
    "part", ["generator", *(pytest.param(p, marks=pytest.mark.exactness) for p in COLD if p != "generator")]
)
def test_a_part_that_is_left_cold_shows(
    straight: tuple[Path, list[dict[str, Any]]], cut: Path, tmp_path: Path, part: str
) -> None:
    on, place, where = COLD[part]
    root = tmp_path / "run"
    shutil.copytree(cut, root)
    ended = finish(SCRIPT, root, of={rank: {"cold": part} for rank in on})
    assert tuple(r for r in range(2) if ended[r][place] != straight[1][r][place]) == where


def test_a_rank_that_does_not_come_to_agree_is_an_error_and_no_hang(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with ranks(SCRIPT, root, step_timeout=1.0, of={0: {"stop": 30}}) as processes:
        answer = told(processes[1], status=3)
    assert answer["error"] == "RankMissing"
    assert_whole(root)

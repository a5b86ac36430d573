"""Two ranks under DistributedDataParallel whose modules have buffers: what differs between ranks is each one's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import assert_whole, differing, repository, steps_of

from .launch import finish, killed, ranks, told

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "ddp_script.py"
COLD = {
    "shared": ({0: {"cold": "shared"}}, "shared buffers", (0, 1)),  # rank 0's are handed to all
    "own": ({1: {"cold": "own"}}, "own buffers", (1,)),
    "weights": ({0: {"cold": "weights"}, 1: {"cold": "weights"}}, "shared", (0, 1)),
    "optimizer": ({0: {"cold": "optimizer"}, 1: {"cold": "optimizer"}}, "moments", (0, 1)),
    "generator": ({1: {"cold": "generator"}}, "draws", (1,)),
}
"""What is left as new on which ranks, where it shows at the end, and on which ranks."""
TOLD = ("started", "changes", "line")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    return root, finish(SCRIPT, root)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed and not started again."""
    root = tmp_path_factory.mktemp("cut") / "run"
    killed(SCRIPT, root, 1, of={1: {"die": 10}})
    assert 0 < steps_of(root)[0] <= 10
    return root


def ends(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: found for name, found in one.items() if name not in TOLD} for one in told]


def test_a_module_with_buffers_is_saved_and_goes_on_as_if_nothing_had_happened(
    undisturbed: tuple[Path, list[dict[str, Any]]], cut: Path, tmp_path: Path
) -> None:
    straight, expected = undisturbed
    assert len(steps_of(straight)) > 2  # also in between, where the ranks' own buffers differ
    one, other = ends(expected)
    assert one["shared"] == other["shared"]
    assert one["own buffers"] != other["own buffers"]  # else the test shows nothing
    root = tmp_path / "run"
    shutil.copytree(cut, root)
    resumed = finish(SCRIPT, root)
    assert [found["started"] for found in resumed] == [steps_of(cut)[0]] * 2
    assert [found["changes"] for found in resumed] == [[], []]
    assert ends(resumed) == ends(expected)
    assert differing(root, straight) == []
    assert_whole(root)
    entries = repository(root).manifest(repository(root).commits()[0]).documents.values()
    names = {entry.component for entry in entries}
    assert {"policy_weights@rank0", "policy_weights@rank1", "optimizer_states"} <= names


@pytest.mark.parametrize(
    "part", ["own", *(pytest.param(p, marks=pytest.mark.exactness) for p in COLD if p != "own")]
)
def test_a_part_that_is_left_cold_shows(
    undisturbed: tuple[Path, list[dict[str, Any]]], cut: Path, tmp_path: Path, part: str
) -> None:
    of, place, where = COLD[part]
    root = tmp_path / "run"
    shutil.copytree(cut, root)
    ended = finish(SCRIPT, root, of=of)
    shows = tuple(r for r in range(2) if ended[r][place] != undisturbed[1][r][place])
    assert shows == where


def test_what_stays_the_same_on_every_rank_is_still_compared(tmp_path: Path) -> None:
    with ranks(SCRIPT, tmp_path / "run", of={1: {"drift": 5}}) as processes:
        answers = [told(process, status=3) for process in processes]
    # One may hear of the other's end before it hears why.
    assert "ReplicasDiffer" in [answer["error"] for answer in answers]
    assert any("rank 1: optimizer_states: " in answer["message"] for answer in answers)


@pytest.mark.parametrize(("before", "after"), [pytest.param(1, 2, marks=pytest.mark.exactness), (2, 3)])
def test_a_rank_that_is_new_begins_with_the_weights_of_the_others(
    cut: Path, tmp_path: Path, before: int, after: int
) -> None:
    root = tmp_path / "run"
    if before == 1:
        finish(SCRIPT, root, size=1, total=8)
    else:
        shutil.copytree(cut, root)
    resumed = finish(SCRIPT, root, size=after, total=14)
    assert all(f"number of ranks was {before} and is {after}" in found["changes"][0] for found in resumed)
    for name in ("shared", "own", "moments"):
        assert len({str(found[name]) for found in resumed}) == 1, name

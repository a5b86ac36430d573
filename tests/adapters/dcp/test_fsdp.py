"""A training under FSDP2 through the coordinator: shards, environments and generators of each rank, exactly."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.dcp.fsdp_script import EVERY, PARTS
from tests.adapters.dcp.ranks import ANY, run
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

SCRIPT = "fsdp_script.py"
KILLED = 6
RESUMED = KILLED // EVERY * EVERY


def final_state(root: Path) -> Snapshot:
    repository = Repository.open(root, "run")
    commit = repository.commits()[0]
    assert commit.position == "end"
    assert repository.verify(commit) == []
    return repository.load(commit)


@dataclass(frozen=True)
class Undisturbed:
    root: Path
    said: list[dict[str, Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Undisturbed(folder / "run", [end.said for end in run(folder, SCRIPT, folder / "run")])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which rank 1 was killed in the middle of a training step; rank 0 then fails in a collective."""
    folder = tmp_path_factory.mktemp("killed")
    ends = run(folder, SCRIPT, folder / "run", "--kill", KILLED, expect=[ANY, -signal.SIGKILL])
    assert ends[0].code != 0
    assert Repository.open(folder / "run", "run").commits()[0].step == RESUMED
    return folder / "run"


def copied(killed: Path, folder: Path) -> Path:
    shutil.copytree(killed, folder / "run")
    return folder / "run"


def test_a_run_whose_rank_was_killed_ends_as_if_nothing_had_happened(
    undisturbed: Undisturbed, killed: Path, tmp_path: Path
) -> None:
    root = copied(killed, tmp_path)
    ended = [end.said for end in run(tmp_path, SCRIPT, root, "--seed", 2)]
    assert [said.pop("first") for said in ended] == [RESUMED] * 2
    assert ended == [{part: said[part] for part in PARTS} for said in undisturbed.said]
    assert ended[0]["weights"] != ended[1]["weights"]  # each rank has shards of its own
    assert compare(final_state(undisturbed.root), final_state(root)) == []


COLD = [
    part if part in ("optimizer", "generators") else pytest.param(part, marks=pytest.mark.exactness)
    for part in PARTS
]


@pytest.mark.parametrize("part", COLD)
def test_a_part_that_starts_cold_ends_elsewhere(
    undisturbed: Undisturbed, killed: Path, tmp_path: Path, part: str
) -> None:
    root = copied(killed, tmp_path)
    ended = [end.said for end in run(tmp_path, SCRIPT, root, "--seed", 2, "--cold", part)]
    for said, unhurt in zip(ended, undisturbed.said, strict=True):
        assert said["first"] == RESUMED
        assert said[part] != unhurt[part]


def test_another_number_of_ranks_is_refused_with_the_way_out(killed: Path, tmp_path: Path) -> None:
    root = copied(killed, tmp_path)
    (end,) = run(tmp_path, SCRIPT, root, size=1, expect=[3])
    assert "load it with unbroken.dcp, which cuts tensors anew" in end.said["refused"]
    assert Repository.open(root, "run").commits()[0].step == RESUMED

"""Sharded and replicated modules, for real: two processes that meet over gloo, one of them per rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from tests.capture.sharded_script import PARTS, SAVED
from tests.cli.command import unbroken
from unbroken.capture.dtensor import placement_of, word_of
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

HERE = Path(__file__).parent
TOP = HERE.parent.parent
RANKS = (0, 1)


def pair(folder: Path, script: str, *words: object, expect: int = 0) -> list[str]:
    """Run both ranks of a script to their ends; return what each has printed."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOP)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(rank), str(meeting), *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in RANKS
    ]
    try:
        ends = [rank.communicate(timeout=280) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [expect, expect], "\n".join(error for _, error in ends)
    return [out for out, _ in ends]


def train(root: Path, *words: object, expect: int = 0) -> list[list[str]]:
    """Train; return for each rank the step at which it began and the digests that it ended with."""
    root.mkdir(exist_ok=True)
    printed = pair(root, "sharded_script.py", root / "runs", *words, expect=expect)
    return [line.split() for line in printed]


def final_state(root: Path, rank: int) -> Snapshot:
    repository = Repository.open(root / "runs", f"rank{rank}")
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    root = tmp_path_factory.mktemp("undisturbed")
    return root, train(root)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose ranks were both killed after the checkpoint."""
    root = tmp_path_factory.mktemp("killed")
    train(root, "--kill", expect=-signal.SIGKILL)
    return root


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    printed = pair(tmp_path_factory.mktemp("misfits"), "misfit_script.py")
    return [json.loads(line) for line in printed]


def copy_of(run: Path, to: Path) -> Path:
    subprocess.run(["cp", "-r", str(run), str(to)], check=True)
    return to


def test_saving_does_not_change_the_training(
    undisturbed: tuple[Path, list[list[str]]], answers: list[dict[str, Any]]
) -> None:
    _, ended = undisturbed
    assert [rank[1:] for rank in ended] == [rank["plain"] for rank in answers]


def test_ranks_that_were_killed_end_as_if_nothing_had_happened(
    undisturbed: tuple[Path, list[list[str]]], killed: Path, tmp_path: Path
) -> None:
    first, ended = undisturbed
    second = copy_of(killed, tmp_path / "resumed")
    resumed = train(second, "--seed", 2)  # built with other weights than the first time
    assert [rank[0] for rank in resumed] == [str(SAVED)] * 2
    assert [rank[1:] for rank in resumed] == [rank[1:] for rank in ended]
    assert resumed[0][1] != resumed[1][1]  # each rank has its own shards
    for rank in RANKS:
        assert compare(final_state(first, rank), final_state(second, rank)) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_starts_cold_ends_elsewhere(
    undisturbed: tuple[Path, list[list[str]]], killed: Path, tmp_path: Path, part: str
) -> None:
    _, ended = undisturbed
    cold = train(copy_of(killed, tmp_path / "cold"), "--seed", 2, "--cold", part)
    for rank in RANKS:
        assert cold[rank][0] == str(SAVED)
        same = [a == b for a, b in zip(cold[rank][1:], ended[rank][1:], strict=True)]
        # The models do not touch each other: each of them shows that its own part was left cold.
        assert same == [False] * 4 + [part != "generators"]


def test_a_part_of_the_weights_is_not_exported_as_if_it_were_all(killed: Path, tmp_path: Path) -> None:
    answer = unbroken("export", killed / "runs" / "rank1", "--to", "w.pt", cwd=tmp_path)
    assert answer.code == 2
    assert "holds the part [64, 64] of 0.weight [129, 64]" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_another_layout_is_refused_in_one_sentence(answers: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(answers):
        assert found["fits"] == []
        saved = f"was saved on a mesh of 2 ranks (shard), this rank at [{rank}], and the program has"
        remedy = "load it with unbroken.dcp, which cuts tensors anew."
        for name, now in {
            "axis": f"a mesh of 2 ranks (other), this rank at [{rank}]",
            "grid": f"a mesh of 2 x 1 ranks (replicate, shard), this rank at [{rank}, 0]",
        }.items():
            assert [f"{saved} {now}: {remedy}" in line for line in found[name]] == [True], found[name]
        columns = (
            "it/_parameters/weight/value: "
            f"the part [3, 4] from [{3 * rank}, 0] of a float32[6, 4] (shard 0) was saved, and the program"
            f" has the part [6, 2] from [0, {2 * rank}] of a float32[6, 4] (shard 1) here: {remedy}"
        )
        assert found["columns"] == [columns]
        assert any("was saved and the program has" in line for line in found["plain module"])
        assert [f"{saved} none here." in line for line in found["no mesh"]] == [True], found["no mesh"]


def test_a_module_that_is_not_at_rest_is_refused(answers: list[dict[str, Any]]) -> None:
    for found in answers:
        assert "it holds gathered parameters (FSDP). Call reshard()" in found["gathered"]
        assert "it holds gradients that are not reduced yet (FSDP)." in found["waiting"]
        assert found["at rest"] == found["reduced"] == ""
        assert found["synchronizes again"] is True


def test_a_shard_with_nan_is_found_on_its_rank(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["sick"] == {}
    assert answers[1]["sick"] == {"it/_parameters/weight": "policy_weights"}


def test_a_replicated_tensor_comes_back(answers: list[dict[str, Any]]) -> None:
    assert [found["replicated"] for found in answers] == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 2


def test_gradients_come_back_where_they_are_asked_for(answers: list[dict[str, Any]]) -> None:
    assert [found["gradients"] for found in answers] == [True, True]


def test_a_shard_is_never_moved_away_from_where_it_is_gathered(answers: list[dict[str, Any]]) -> None:
    for found in answers:
        assert "it/b/value could not be written where it lies" in found["moved"]


@pytest.mark.parametrize(
    "placement", [Shard(1), Replicate(), Partial("sum"), _StridedShard(0, split_factor=2)], ids=str
)
def test_placements_are_said_in_words_of_our_own(placement: Placement) -> None:
    assert placement_of(word_of(placement)) == placement
    assert placement_of(f"{word_of(placement)}x") is None

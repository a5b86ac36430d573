"""What the command makes of a run that several ranks have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import unbroken
from tests.repo.parties import REPLICATED, Parties
from tests.repo.states import noise
from unbroken.repo.repository import Repository
from unbroken.store.local import LocalStore


def train(root: Path, replicated: frozenset[str] = REPLICATED) -> Path:
    parties = Parties(LocalStore(root / "job"), replicated=replicated)
    assert parties.begin() == [None, None]
    for step in (1, 2, 3):
        assert parties.save(step, keep_last=3) == [None, None]
    assert parties.writer is not None
    parties.writer.close()
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks with the same weights: checkpoints at the steps 1, 2 and 3. Read only."""
    return train(tmp_path_factory.mktemp("ranks") / "runs")


def test_every_part_is_shown_with_what_it_promises(run: Path) -> None:
    shown = unbroken("show", run, "--json", cwd=run).json["components"]
    promises = {row["component"]: row["fidelity"] for row in shown}
    assert promises["policy_weights"] == "exact"
    assert promises["replay_buffer@rank0"] == promises["replay_buffer@rank1"] == "approximate"
    answer = unbroken("show", run, "--component", "replay_buffer@rank1", cwd=run)
    assert "model/replay_buffer/observations  array |u1 [6000]" in answer.out


def test_all_of_it_is_verified_measured_and_listed(run: Path) -> None:
    assert unbroken("verify", run, cwd=run).out.count("intact") == 3
    assert "replay_buffer@rank1" in unbroken("du", run, cwd=run).out
    assert unbroken("ls", run, cwd=run).out.count("in training") == 3


def test_the_part_of_a_rank_that_differs_is_named(run: Path) -> None:
    answer = unbroken("diff", f"{run}@2", run, cwd=run)
    assert answer.code == 1
    assert "replay_buffer@rank1  different" in answer.out


def test_weights_of_all_and_a_buffer_of_one_are_exported(run: Path, tmp_path: Path) -> None:
    for component, file, name, content in (
        ("policy_weights", "p.npz", "model/policy/w", noise(4000, 3)),
        ("replay_buffer@rank1", "b.npz", "model/replay_buffer/observations", noise(6000, 1003)),
    ):
        answer = unbroken("export", run, "--component", component, "--to", tmp_path / file, cwd=run)
        assert answer.code == 0, answer.err
        with np.load(tmp_path / file) as found:
            assert found[name].tobytes() == content
    assert (
        "replay_buffer@rank0"
        in unbroken("export", run, "--component", "replay_buffer", "--to", "x.npz", cwd=tmp_path).err
    )


def test_where_each_rank_has_weights_of_its_own_those_of_the_first_are_exported(tmp_path: Path) -> None:
    root = train(tmp_path / "runs", frozenset())
    answer = unbroken("export", root, "--to", "p.npz", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("policy_weights@rank0 of ")
    with np.load(tmp_path / "p.npz") as found:
        assert found["model/policy/w"].tobytes() == noise(4000, 3)


def test_a_copy_has_what_belongs_to_each_rank(run: Path, tmp_path: Path) -> None:
    assert unbroken("copy", run, tmp_path / "copy", cwd=tmp_path).code == 0
    assert "was there" in unbroken("copy", run, tmp_path / "copy", cwd=tmp_path).out
    one, other = Repository.open(run, "job"), Repository.open(tmp_path / "copy", "job")
    [copied] = other.commits()
    assert other.verify(copied) == []
    assert other.manifest(copied).ranks == one.manifest(one.commits()[0]).ranks
    assert len(other.manifest(copied).ranks) == 2


def test_what_is_pruned_is_gone_and_the_rest_is_whole(tmp_path: Path) -> None:
    root = train(tmp_path / "runs")
    assert unbroken("prune", root, "--keep-last", "1", cwd=tmp_path).code == 0
    repository = Repository.open(root, "job")
    [left] = repository.commits()
    assert repository.verify(left) == []

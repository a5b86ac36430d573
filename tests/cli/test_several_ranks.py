"""What the command makes of a run that several ranks have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import unbroken
from tests.repo.parties import REPLICATED, Parties, at_once
from tests.repo.states import meta, noise
from unbroken.capture.source import policy_of_loaded
from unbroken.repo.repository import Repository
from unbroken.report.arrays import Arrays
from unbroken.state import walk
from unbroken.state.nodes import class_name
from unbroken.state.policy import Policy
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


def module_of_ranks() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(3))
            self.layer = torch.nn.Linear(3, 4)
            self.blocks = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
            self.again = self.layer
            self.target = torch.nn.Linear(3, 4)

    return Net


@pytest.mark.parametrize("replicated", [REPLICATED, frozenset[str]()], ids=["together", "apart"])
def test_a_module_of_which_each_rank_has_the_outside_is_exported_as_by_one_process(
    tmp_path: Path, replicated: frozenset[str]
) -> None:
    """Its networks are a component of their own there, for all ranks or for each."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(1)
    kind = module_of_ranks()
    module, policy = kind(), policy_of_loaded()
    apart = policy.merged(Policy(components={class_name(kind): "module_state"}))
    parties = Parties(LocalStore(tmp_path / "two" / "job"), replicated=replicated)
    assert parties.begin() == [None, None]
    writer, follower = parties.writer, parties.follower
    assert writer is not None
    assert follower is not None
    first, second = (walk.capture({"module": module}, apart) for _ in range(2))
    assert {"policy_weights", "module_state"} <= first.components.keys()
    at_once(
        lambda: writer.checkpoints.write(first, meta(1)),
        lambda: follower.checkpoints.write(second, meta(1)),
        time_of=parties.time,
    )
    writer.close()
    repository = Repository.over(LocalStore(tmp_path / "one" / "job"), "job", create=True)
    with repository.writer() as alone:
        alone.checkpoints.write(walk.capture({"module": module}, policy), meta(1))
    lines: list[str] = []
    for run in ("one", "two"):
        answer = unbroken("export", run, "--to", tmp_path / f"{run}.pt", "--json", cwd=tmp_path)
        assert answer.code == 0, answer.err
        lines += [line.replace(f"{run}.pt", "") for line in answer.json["load"]]
    assert lines[0].startswith("module.load_state_dict(torch.load(")
    assert lines == [lines[0]] * 2
    one, two = (torch.load(tmp_path / f"{run}.pt", weights_only=True) for run in ("one", "two"))
    expected = module.state_dict()
    assert list(one) == list(two) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(one[name], tensor)
        assert torch.equal(two[name], tensor)


def test_of_networks_whose_outside_is_nowhere_one_table_is_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kind = module_of_ranks()
    module = kind()
    snapshot = walk.capture(
        {"module": module}, policy_of_loaded().merged(Policy(components={class_name(kind): "module_state"}))
    )
    del snapshot.components["module_state"]
    [(place, tensors)] = Arrays(snapshot).modules("policy_weights").items()
    assert place == "module"
    assert {name for name in module.state_dict() if name.startswith(("layer.", "blocks."))} <= tensors.keys()


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

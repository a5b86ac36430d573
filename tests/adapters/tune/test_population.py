"""Population based training: the loser becomes a clone of the winner, and no exploit can fail.

Every trial keeps one checkpoint (`keep_last=1`), and of the experiment `anew` Tune keeps two pointers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unbroken.repo.repository import Repository, jobs
from unbroken.state.nodes import Dict, Float, List, Object
from unbroken.state.snapshot import Snapshot

from .drive import drive

pytest.importorskip("ray.tune")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow
EXPERIMENTS = (
    "reused",
    pytest.param("function", marks=pytest.mark.exactness),
    pytest.param("anew", marks=pytest.mark.exactness),
)


@dataclass(frozen=True)
class Population:
    experiment: str
    root: Path
    told: str
    outcome: dict[str, Any]
    draws: list[dict[str, Any]]

    def runs(self) -> list[Repository]:
        root = self.root / "checkpoints"
        return [Repository.open(root, job) for job in jobs(root)]

    def clones(self) -> list[dict[str, Any]]:
        """Return what was noted at the starts of clones."""
        return [line for line in self.draws if line["event"].startswith("commit")]


@pytest.fixture(scope="module", params=EXPERIMENTS)
def population(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Population:
    root = tmp_path_factory.mktemp("population")
    told = drive("population.py", str(root), request.param)
    draws = [json.loads(line) for line in (root / "draws.jsonl").read_text().splitlines()]
    return Population(request.param, root, told, json.loads((root / "outcome.json").read_text()), draws)


def test_trials_exploit_and_none_fails(population: Population) -> None:
    assert population.outcome["errors"] == []
    assert population.clones()
    # A synchronous scheduler leaves a trial paused for good if it paused last. The others come to their end.
    assert max(run.commits()[0].step for run in population.runs()) == 4


def test_the_schedulers_hyperparameters_win_over_the_parents(population: Population) -> None:
    chosen = population.outcome["lr"]
    assert 0.016 in chosen.values()  # half of the winner's
    for run in population.runs():
        state = run.load(run.commits()[0])
        assert learning_rates(state) == {chosen[run.job.partition("-")[2]]}


def test_a_clone_draws_what_its_parent_does_not(population: Population) -> None:
    for clone in population.clones():
        parent = clone["event"].rpartition(" of ")[2]
        same_step = [
            line for line in population.draws if line["job"] == parent and line["step"] == clone["step"]
        ]
        assert same_step
        for line in same_step:
            assert all(a != b for a, b in zip(line["drawn"], clone["drawn"], strict=True))


def test_lineage_stands_in_every_checkpoint_and_in_the_history(population: Population) -> None:
    for clone in population.clones():
        run = Repository.open(population.root / "checkpoints", clone["job"])
        parent = clone["event"].rpartition(" of ")[2]
        lineage = run.meta(run.commits()[0]).counters["lineage"]
        assert lineage["job"] == parent
        reasons = [reason for record in run.history() for reason in record.reasons]
        assert f"cloned from commit {lineage['sequence']} of {parent} ({lineage['digest']})" in reasons


def test_each_clone_says_one_line(population: Population) -> None:
    told = [line for line in population.told.splitlines() if "as a clone of" in line]
    assert len(told) == len(population.clones())
    assert all(" lr 0.032 -> 0.016 ·" in line for line in told)


def test_a_process_is_used_for_two_trials_where_tune_was_told_so(population: Population) -> None:
    trials: dict[int, set[str]] = {}
    for line in population.draws:
        trials.setdefault(line["pid"], set()).add(line["job"])
    assert any(len(jobs) == 2 for jobs in trials.values()) == (population.experiment == "reused")


def learning_rates(state: Snapshot) -> set[float]:
    """Return the learning rates in the groups of the optimizer `opt`."""
    found: set[float] = set()
    stack: list[tuple[str, Any]] = [
        (place, node) for part in state.components.values() for place, node in part.roots.items()
    ]
    while stack:
        place, node = stack.pop()
        if isinstance(node, Dict) and node.v is not None:
            if "lr" in node.v and "momentum" in node.v:
                value = node.v["lr"]
                assert isinstance(value, float)
                found.add(value)
            stack += [(place, child) for child in node.v.values()]
        elif isinstance(node, List):
            stack += [(place, child) for child in node.v]
        elif isinstance(node, Object):
            stack += [(place, child) for child in node.a.values()]
        else:
            assert not isinstance(node, Float)
    return found

"""`unbroken show` tells what saving each component cost, and by which way environments were captured."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.command import unbroken
from unbroken.adapters.loop import Run
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.cli.show import cost_table
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.format.layout import document
from unbroken.format.meta import ComponentCost
from unbroken.format.pack import decode_index
from unbroken.inspection.checkpoint import Checkpoint
from unbroken.repo.repository import Repository
from unbroken.types import How

NBYTES = 24_000


def saved_twice(root: Path, *, change: bool) -> Repository:
    """A run with a checkpoint of its start and one of step 10, between which `weights` may have changed."""
    weights: NDArray[np.float64] = np.arange(NBYTES / 8)
    source = GraftSource({"weights": weights, "generators": GlobalGenerators()}, policy_of_loaded())
    with CheckpointEngine(source, Settings(root=root, job="run"), environment={}) as engine:
        engine.resume()
        weights += change
        engine.save(10, reason="it was time", wait=True)
    return Repository.open(root, "run")


@pytest.mark.parametrize(("change", "new"), [(False, 0), (True, NBYTES)])
def test_the_cost_of_a_component_counts_what_is_captured_and_what_of_it_is_new(
    tmp_path: Path, change: bool, new: int
) -> None:
    repository = saved_twice(tmp_path, change=change)
    cost = repository.meta(repository.commits()[0]).cost["training_state"]
    assert (cost.captured, cost.new) == (NBYTES, new)


def test_what_is_written_is_what_lies_in_packs_and_documents(tmp_path: Path) -> None:
    repository = saved_twice(tmp_path, change=True)
    run = tmp_path / "run"
    packed = sum(
        entry.stored for index in run.rglob("*.idx") for entry in decode_index(index.read_bytes()).entries
    )
    documents = 0
    for commit in repository.commits():
        for entry in repository.manifest(commit).documents.values():
            documents += (run / commit.directory / document(entry.component, entry.format)).stat().st_size
    costs = [cost for commit in repository.commits() for cost in repository.meta(commit).cost.values()]
    assert sum(cost.written or 0 for cost in costs) == packed + documents


def test_the_seconds_of_components_are_a_part_of_those_for_which_training_stood_still(tmp_path: Path) -> None:
    repository = saved_twice(tmp_path, change=True)
    for commit in repository.commits():
        meta = repository.meta(commit)
        assert meta.cost.keys() == {"training_state", "rng_states"}
        assert all(cost.seconds > 0 for cost in meta.cost.values())
        assert sum(cost.seconds for cost in meta.cost.values()) <= meta.seconds_blocked


def test_show_has_a_line_for_each_component_and_one_for_all(tmp_path: Path) -> None:
    saved_twice(tmp_path, change=False)
    shown = unbroken("show", "run", "--cost", cwd=tmp_path).out
    lines = shown[shown.index("cost ") :].splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "cost",
        "rng_states",
        "training_state",
        "for all of them",
        "in all",
    ]
    assert re.split(r"\s{2,}", lines[2])[4] == "0 B"  # nothing of it is new
    told = unbroken("show", "run", "--json", cwd=tmp_path).json
    assert told["meta"]["cost"]["training_state"]["captured"] == NBYTES
    assert told["meta"]["fidelity"]["training_state"] == {"fidelity": "exact", "reason": ""}


@pytest.mark.parametrize(
    ("one", "other", "told"), [(None, None, ""), (7, None, ""), (7, 0, "7 B"), (0, 0, "0 B")]
)
def test_what_nobody_counted_is_not_shown_as_nothing(
    tmp_path: Path, one: int | None, other: int | None, told: str
) -> None:
    repository = saved_twice(tmp_path, change=True)
    (commit, *_) = repository.commits()
    meta = repository.meta(commit)
    cost = {
        "rng_states": ComponentCost(captured=1, new=one, written=one),
        "training_state": ComponentCost(captured=1, new=other, written=other),
    }
    meta = msgspec.structs.replace(meta, cost=cost)
    checkpoint = Checkpoint("run", commit, meta, (), "not needed")
    assert [str(cell) for cell in cost_table(checkpoint).rows[-1]][-2:] == [told, told]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("CartPole-v1", "its attributes"),
        ("LunarLander-v3", "action replay since the last reset"),
        ("BipedalWalker-v3", "action replay since its construction"),
        ("Hopper-v5", "a capturer for its simulator"),
    ],
)
def test_show_tells_by_which_way_environments_were_captured(tmp_path: Path, kind: str, way: str) -> None:
    envs = gymnasium.make_vec(kind, num_envs=2, vectorization_mode="sync")
    envs.reset(seed=1)
    run = Run(tmp_path, job="run", quiet=True)
    run.track(envs=envs)
    for _ in run.steps(1):
        pass
    assert way in {how.value for how in How}  # as a start says it
    told = unbroken("show", "run", "--json", cwd=tmp_path).json["environments"]
    assert [(one["way"], one["where"], one["count"]) for one in told] == [(way, "here", 2)]
    assert way in unbroken("show", "run", cwd=tmp_path).out


def test_ls_and_show_tell_what_is_not_exact_and_why(tmp_path: Path) -> None:
    source = GraftSource({"feed": {"tags": {"a", "b"}}, "weights": np.zeros(3)}, policy_of_loaded())
    with CheckpointEngine(source, Settings(root=tmp_path, job="run"), environment={}) as engine:
        engine.resume()
    assert "good; approximate: all parts" in unbroken("ls", "run", cwd=tmp_path).out
    (run,) = unbroken("ls", "run", "--json", cwd=tmp_path).json["runs"]
    assert [one["fidelity"] for one in run["checkpoints"]] == [{"training_state": "approximate"}]
    (told,) = unbroken("show", "run", "--json", cwd=tmp_path).json["components"]
    assert (told["component"], told["fidelity"]) == ("training_state", "approximate")
    assert told["reason"].startswith("feed/tags: a set")

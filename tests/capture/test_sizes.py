"""A loop whose vector of environments has another number of them than was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import unbroken
from unbroken.errors import StateMismatch

Build = Callable[[int], Any]


def bare(n_envs: int) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="sync")


def wrapped(n_envs: int) -> Any:
    env = gymnasium.wrappers.vector.NormalizeObservation(bare(n_envs))
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(env)


class Loop:
    """A training that begins new episodes when its observations are not those of its environments."""

    def __init__(self, root: Path, env: Any, **options: Any) -> None:
        self.env = env
        self.net = torch.nn.Linear(4, 2)
        self.run = unbroken.Run(root, every=10, quiet=True, **options)
        self.run.track(net=self.net, env=env)
        self.run.vars.obs = None
        self.first: dict[str, Any] = {}
        self.run.scratch(self.first)

    def train(self, total: int) -> None:
        for _ in self.run.steps(total):
            if self.run.vars.obs is None or len(self.run.vars.obs) != self.env.num_envs:
                self.run.vars.obs, _ = self.env.reset(seed=5)
            if not self.first:
                self.first["weights"] = self.net.weight.detach().numpy().copy()
                self.first["observations"] = self.run.vars.obs.copy()
            with torch.no_grad():
                self.net.weight.add_(0.01)
            actions = np.zeros(self.env.num_envs, np.int64)
            self.run.vars.obs = self.env.step(actions)[0]


@pytest.mark.parametrize("build", [bare, wrapped])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_another_number_is_refused_by_name(build: Build, before: int, after: int, tmp_path: Path) -> None:
    Loop(tmp_path, build(before)).train(20)
    again = Loop(tmp_path, build(after))
    untouched = again.net.weight.detach().numpy().copy()
    with pytest.raises(StateMismatch) as caught:
        again.train(40)
    assert list(caught.value.differences) == [
        (
            f"env/num_envs: {before} environments were saved and the program has {after};"
            ' allow_changed={"n_envs"} keeps those that the script has built.'
        )
    ]
    assert np.array_equal(again.net.weight.detach().numpy(), untouched)


@pytest.mark.parametrize("allowed", ["num_envs", "n_envs", "env", "env/num_envs", "env/n_envs"])
@pytest.mark.parametrize("build", [bare, wrapped])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_where_it_is_allowed_the_vector_stays_as_built_and_all_else_comes_back(
    build: Build, before: int, after: int, allowed: str, tmp_path: Path
) -> None:
    first = Loop(tmp_path, build(before))
    first.train(20)
    again = Loop(tmp_path, build(after), allow_changed={allowed})
    again.train(40)
    assert np.array_equal(again.first["weights"], first.net.weight.detach().numpy())
    fresh, _ = build(after).reset(seed=5)
    assert np.array_equal(again.first["observations"], fresh)
    report = again.run.report
    assert report is not None and report.restored
    assert report.inexact == ("env/num_envs: kept as built",)
    assert "env/num_envs: kept as built (allowed, so the run is no longer exact)" in report.changes


def test_an_allowed_number_that_did_not_change_costs_nothing(tmp_path: Path) -> None:
    Loop(tmp_path / "R", bare(2)).train(20)
    again, undisturbed = (
        Loop(tmp_path / "R", bare(2), allow_changed={"num_envs"}),
        Loop(tmp_path / "U", bare(2)),
    )
    again.train(40)
    undisturbed.train(40)
    assert again.run.report is not None and again.run.report.inexact == ()
    assert np.array_equal(again.run.vars.obs, undisturbed.run.vars.obs)


class Agent:
    def __init__(self, env: Any) -> None:
        self.env = env
        self.steps = 0


def in_the_variables(run: unbroken.Run, env: Any) -> None:
    run.vars.env = env


def in_a_list(run: unbroken.Run, env: Any) -> None:
    run.track(envs=[env])


def in_an_object(run: unbroken.Run, env: Any) -> None:
    run.track(agent=Agent(env))


def as_itself_and_in_an_object(run: unbroken.Run, env: Any) -> None:
    run.track(agent=Agent(env), vector=env)


def beginning(root: Path, put: Callable[[unbroken.Run, Any], None], env: Any, **options: Any) -> Any:
    """Return a run that has ended, and the weights in its first iteration, each of which adds one to them."""
    run = unbroken.Run(root, every=10, quiet=True, **options)
    weights = np.zeros(3)
    run.track(weights=weights)
    put(run, env)
    env.reset(seed=5)
    env.action_space.seed(5)
    first: list[Any] = []
    run.scratch(first)
    for _ in run.steps(3 if not options else 6):
        first.append(weights.copy())
        weights += 1.0
        env.step(np.zeros(env.num_envs, np.int64))
    return run, first[0]


@pytest.mark.parametrize("build", [bare, wrapped])
@pytest.mark.parametrize(
    ("put", "place"),
    [
        (in_the_variables, "vars/env"),
        (in_a_list, "envs/0"),
        (in_an_object, "agent/env"),
        (as_itself_and_in_an_object, "agent/env"),
    ],
)
def test_a_vector_of_another_number_is_found_wherever_it_stands(
    build: Build, put: Callable[[unbroken.Run, Any], None], place: str, tmp_path: Path
) -> None:
    beginning(tmp_path, put, build(2))
    with pytest.raises(StateMismatch) as caught:
        beginning(tmp_path, put, build(3))
    assert list(caught.value.differences) == [
        (
            f"{place}/num_envs: 2 environments were saved and the program has 3;"
            ' allow_changed={"n_envs"} keeps those that the script has built.'
        )
    ]
    run, first = beginning(tmp_path, put, build(3), allow_changed={"n_envs"})
    assert first.tolist() == [3.0, 3.0, 3.0]
    assert run.report.inexact == (f"{place}/num_envs: kept as built",)

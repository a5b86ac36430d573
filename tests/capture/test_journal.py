"""What a journal records of environments, and what it says where it cannot."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import unbroken
from unbroken.engine.rebuild import JournalWarning
from unbroken.errors import CorruptObject
from unbroken.format.journal import Moment
from unbroken.repo import journal
from unbroken.repo.repository import Repository


def training(root: Path, env: Any, total: int, *, stop_at: int = -1, **settings: Any) -> Iterator[int]:
    """Yield each step of a small loop, with every save written; left at `stop_at` as by an error."""
    run = unbroken.Run(root, job="run", every=10, journal=True, quiet=True, **settings)
    env.reset(seed=3)
    run.track(env=env)
    with run:
        for step in run.steps(total):
            if step == stop_at:
                return
            run.wait()
            yield step
            result = env.step(env.action_space.sample())
            if np.any(result[2]) or np.any(result[3]):
                env.reset()


def problems(root: Path) -> dict[int, str]:
    run = Repository.open(root, "run")
    return {commit.step: journal.read(run.store, commit)[0].problem for commit in run.commits()}


def test_each_checkpoint_has_an_entry_and_no_other_is_kept(tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    for _ in training(tmp_path, env, 45, keep_last=2):
        pass
    run = Repository.open(tmp_path, "run")
    assert sorted(run.store.list("journal")) == sorted(Moment.of(commit).key for commit in run.commits())
    assert problems(tmp_path) == {45: "", 40: ""}


def test_an_environment_is_left_as_it_was_found(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    inside = set()
    for _ in training(tmp_path, env, 25):
        inside.add("step" in vars(env.unwrapped))
    assert inside == {True}
    assert {"step", "reset"}.isdisjoint(vars(env.unwrapped))


def test_a_checkpoint_with_a_journal_is_read_without_one_and_the_other_way_round(tmp_path: Path) -> None:
    for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 45, stop_at=25):
        pass
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=4)
    plain = unbroken.Run(tmp_path, job="run", every=10, quiet=True)
    plain.track(env=env)
    with plain:
        for step in plain.steps(45):
            if step == 33:
                break
            env.step(env.action_space.sample())
    assert plain.report is not None
    assert (plain.report.step, plain.report.tier.value) == (20, "newest")
    assert next(training(tmp_path, gymnasium.make("Pendulum-v1"), 45)) >= 20


def test_after_a_restart_the_journal_says_nothing_until_the_next_reset(tmp_path: Path) -> None:
    for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 300, stop_at=155, keep_last=99):
        pass
    for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 300, stop_at=235, keep_last=99):
        pass
    found = problems(tmp_path)
    assert "was restored in the middle of an episode" in found[160]
    assert found[150] == found[210] == found[230] == "", "an episode has 200 steps"


def test_environments_in_workers_are_said_to_be_in_no_journal(tmp_path: Path) -> None:
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
    try:
        for _ in training(tmp_path, env, 12):
            pass
    finally:
        env.close()
    assert set(problems(tmp_path).values()) == {"the environments live in other processes"}


def test_an_entry_that_cannot_be_written_costs_no_checkpoint_and_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").write_text("in the way")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 45):
            pass
    assert [commit.step for commit in Repository.open(tmp_path, "run").commits()] == [45, 40, 30, 20, 10]
    assert len([one for one in heard if one.category is JournalWarning]) == 1


@pytest.mark.parametrize("cut", [0, 4, 8, 30, -1])
def test_an_entry_that_is_cut_off_is_damaged(tmp_path: Path, cut: int) -> None:
    for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 5):
        pass
    run = Repository.open(tmp_path, "run")
    commit = run.commits()[0]
    path = tmp_path / "run" / Moment.of(commit).key
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptObject):
        journal.read(run.store, commit)
    assert run.verify(commit) == []


def test_an_entry_is_good_for_its_own_checkpoint_only(tmp_path: Path) -> None:
    for _ in training(tmp_path, gymnasium.make("Pendulum-v1"), 25):
        pass
    run = Repository.open(tmp_path, "run")
    newest, older = run.commits()[:2]
    here = tmp_path / "run"
    (here / Moment.of(newest).key).write_bytes((here / Moment.of(older).key).read_bytes())
    with pytest.raises(CorruptObject, match="speaks of another checkpoint"):
        journal.read(run.store, newest)

"""A save that is asked for inside `train()`, inside an evaluation: the state before it is written at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unbroken.repo.repository import Repository

from .asked import Case, Interpreter, check, three_runs


@pytest.fixture(scope="module")
def first() -> Iterator[Interpreter]:
    interpreter = Interpreter(1)
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="module")
def second() -> Iterator[Interpreter]:
    interpreter = Interpreter(2)
    yield interpreter
    interpreter.close()


def _thorough(*case: Any) -> Any:
    return pytest.param(Case(*case), marks=pytest.mark.exactness)


IN_TRAIN = [
    Case("ppo", 320, 3, ("model/rollout_buffer/advantages",), 192),
    Case("ppo", 300, 5, ("model/rollout_buffer/advantages",), 320),
    _thorough("ppo_gsde", 320, 3, ("model/policy/action_dist", "generators"), 192),
    _thorough("recurrent", 320, 3, ("model/_last_lstm_states",), 192),
    Case("maskable", 320, 3, ("generators",), 192),
    Case("sac", 160, 6, ("generators",), 128),
    _thorough("dqn_episodic", 300, 3, ("generators",), 107),
]


@pytest.mark.parametrize("case", IN_TRAIN, ids=lambda case: f"{case.name}-{case.ask}")
def test_asked_for_inside_train_the_rollout_is_kept_and_train_is_done_again(
    case: Case, first: Interpreter, second: Interpreter, tmp_path: Path
) -> None:
    outcome = three_runs(case, first, second, tmp_path)
    check(outcome, case)
    undisturbed, in_two = outcome.rows
    assert len(undisturbed) >= 2
    assert in_two == undisturbed, "each row was logged once, in its turn"


def test_asked_for_inside_an_evaluation_the_step_is_done_again(
    first: Interpreter, second: Interpreter, tmp_path: Path
) -> None:
    # The sixth event of 46 steps is the third evaluation. It comes after the step from 274 to 276.
    case = Case("evaluated", 320, 3, ("model/_last_obs",), 274)
    check(three_runs(case, first, second, tmp_path), case)
    repository = Repository.open(tmp_path / "R", "job")
    (asked,) = [commit for commit in repository.commits() if commit.step == case.at]
    assert repository.meta(asked).reason == "the cluster asks"

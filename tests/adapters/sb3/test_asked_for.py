"""A save that is asked for inside `train()`, inside an evaluation: the state before it is written at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.save_util import load_from_zip_file

from unbroken.repo.repository import Repository

from .asked import Case, Interpreter, check, three_runs
from .test_around import cells, logged


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


EVALUATED = [
    pytest.param("evaluated_in_workers", "EvalCallback", id="workers"),
    pytest.param("evaluated_with_masks", "MaskableEvalCallback", id="masks", marks=pytest.mark.exactness),
    pytest.param("evaluated_her", "EvalCallback", id="her"),
]


@pytest.mark.parametrize(("name", "callback"), EVALUATED)
def test_an_evaluation_that_is_done_again_leaves_nothing_twice(
    name: str, callback: str, first: Interpreter, second: Interpreter, tmp_path: Path
) -> None:
    # The third evaluation comes after the step from 136 to 138; its row, scores and best model were written.
    cold = (f"callbacks/{callback}/eval_env", "model/_last_obs")
    case = Case(name, 192, 3, cold, 136, {"logs": True})
    check(three_runs(case, first, second, tmp_path), case)
    expected, resumed, forgot = (left_in(tmp_path / f"{run}.files") for run in "URC")
    assert resumed == expected
    assert len(expected["scores"]["timesteps"]) >= 4
    assert len(expected["rows"]) >= 4
    if name != "evaluated_her":  # whose evaluations all fail, in whatever world
        assert forgot["scores"] != expected["scores"]


def left_in(folder: Path) -> dict[str, Any]:
    with np.load(folder / "evaluations.npz") as scores:
        found: dict[str, Any] = {"scores": {key: scores[key].tolist() for key in scores.files}}
    data, tensors, _ = load_from_zip_file(folder / "best_model.zip", device="cpu")
    assert data is not None and tensors is not None
    networks: Any = tensors["policy"]
    policy = {name: tensor.numpy().tobytes() for name, tensor in networks.items()}
    found["best"] = policy, data["num_timesteps"]
    found["rows"] = logged(folder / "progress.csv")
    found["more rows"] = logged(folder / "progress.json"), cells(folder / "log.txt")
    return found

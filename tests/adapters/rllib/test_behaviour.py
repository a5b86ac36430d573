"""What a person sees: refusals, changed settings, runners that die, errors, ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import unbroken.rllib
from tests.adapters.rllib.cluster import Runner
from unbroken.errors import ConfigError


def told(scenario: str, runner: Runner, at: Path) -> dict[str, Any]:
    out, log = at / "out", at / "log"
    status = runner.run(scenario=scenario, root=str(at / "root"), out=str(out), log=str(log))
    assert status == 0, log.read_text()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_what_cannot_be_saved_is_refused_by_name_and_nothing_is_written(
    first: Runner, tmp_path: Path
) -> None:
    found = told("what_cannot_be_saved", first, tmp_path)
    assert found["threads"].startswith("IMPALA loads batches to GPUs in threads of their own")
    assert found["order"].endswith("Put it last in the list of callbacks.")
    assert found["written"] == "False"


@pytest.mark.parametrize(
    "training",
    [
        {"name": "impala", "runners": 1, "learners": 0},
        pytest.param(
            {"name": "appo", "runners": 1, "learners": 1, "aggregators": 1}, marks=pytest.mark.exactness
        ),
    ],
    ids=lambda training: str(training["name"]),
)
def test_an_asynchronous_run_goes_on_with_all_it_had_learned_and_what_was_under_way_is_counted(
    training: dict[str, Any], first: Runner, second: Runner, tmp_path: Path
) -> None:
    order = {"training": training, "root": str(tmp_path / "root"), "log": str(tmp_path / "log")}
    status = first.run(scenario="asynchronous_and_killed", **order)
    assert status == -9, (tmp_path / "log").read_text()
    out = tmp_path / "out"
    status = second.run(scenario="asynchronous_and_resumed", out=str(out), **order)
    assert status == 0, (tmp_path / "log").read_text()
    found, before = json.loads(out.read_text()), json.loads((tmp_path / "root.json").read_text())

    assert found["at the start"] == before
    after = found["at the end"]
    assert after["weights"] != before["weights"]
    assert after["sampled"] > before["sampled"]
    assert after["trained"] > before["trained"]
    assert found["position"] == "end"
    inexact = {name for name, fidelity in found["promises"].items() if fidelity != "exact"}
    assert inexact == {"env_runners", "learners"}
    # A runner has always been asked for the next samples before an iteration ends.
    assert "sampled steps" in found["line"]
    assert found["counters"]["dropped_steps"] >= 10


def test_changed_settings_are_used_and_told_and_what_does_not_fit_is_refused(
    first: Runner, tmp_path: Path
) -> None:
    found = told("what_was_changed", first, tmp_path)
    assert "\n  - env: 'CartPole-v1' -> 'Acrobot-v1'\n" in found["environment"]
    assert "\n  - num_envs_per_env_runner: 2 -> 3\n" in found["envs"]
    assert "\n  - model_config: 'fcnet_hiddens: 8' -> 'fcnet_hiddens: 9'\n" in found["network"]
    assert "\n  - num_env_runners: 0 -> 1\n" in found["runners"]
    assert "\n  - lr: 5e-05 -> 0.01\n" in found["strict"]
    assert found["changes"] == [
        "gamma: 0.99 -> 0.9 (the new one is used)",
        "lr: 5e-05 -> 0.01 (the new one is used)",
    ]
    assert found["lr"] == 0.01


def test_the_losses_and_returns_of_each_iteration_stand_in_the_records_of_its_save(
    first: Runner, tmp_path: Path
) -> None:
    found = told("what_was_learned", first, tmp_path)
    start, *records = found["records"]
    assert not any("loss" in name for name in start)
    losses = [
        {f"learners/default_policy/{name}": value for name, value in of.items()} for of in found["losses"]
    ]
    assert all(
        {name.rpartition("/")[2] for name in of} >= {"total_loss", "policy_loss", "vf_loss"} for of in losses
    )
    assert [{name: value for name, value in of.items() if "loss" in name} for of in records[:3]] == losses
    assert len({of["learners/default_policy/total_loss"] for of in losses}) == 3
    assert records[2]["env_runners/episode_return_mean"] > 0


def test_errors_are_no_end_and_an_end_is_one(first: Runner, tmp_path: Path) -> None:
    found = told("ends", first, tmp_path)
    assert found["after an error"][1] == "step"
    assert found["at the end"][1] == "end"
    (warned,) = found["warned"]
    assert "min_time_s_per_iteration=0" in warned
    line, newest = found["once more"]
    assert line.startswith(f"unbroken: had finished at step {newest[0]}")
    assert newest == found["at the end"]
    assert found["hooks"] == ["cleanup", "log_result"]
    assert found["hooks after"] == []


def test_a_runner_that_dies_begins_anew_with_another_seed_and_less_is_promised(
    first: Runner, tmp_path: Path
) -> None:
    found = told("a_runner_that_dies", first, tmp_path)
    assert any("died at step" in line for line in found["said"])
    (before,), (after,) = found["seeds"]
    assert before != after
    assert found["fidelity"] == "approximate"
    assert found["position"] == "end"
    (status,), (now,) = found["worker_status"], found["now"]
    assert {name: status[name] for name in now} == now
    assert sum(now["steps"]) > 0
    assert (status["group"], status["index"], status["replaces_a_dead_one"]) == ("env_runners", 1, True)


def test_a_runner_that_is_dead_at_the_end_does_not_take_the_end_along(first: Runner, tmp_path: Path) -> None:
    found = told("a_runner_that_is_dead_at_the_end", first, tmp_path)
    started_again, gone = found["True"], found["False"]
    assert started_again["error"] == ""
    assert started_again["newest"][1] == "end"
    assert started_again["fidelity"] == "approximate"
    assert len(started_again["said"]) == 1
    assert gone["error"].startswith("SaveFailed: The end of the training, at step ")
    assert gone["newest"][1] == "step"
    in_all, in_the_runner = gone["episodes"]
    assert in_the_runner == in_all > 0


@pytest.mark.exactness
def test_another_number_of_runners_is_refused_unless_it_was_allowed(first: Runner, tmp_path: Path) -> None:
    found = told("another_number_of_runners", first, tmp_path)
    assert "\n  - num_env_runners: 1 -> 2\n" in found["refused"]
    assert found["changes"][0] == "num_env_runners: 1 -> 2 (allowed, so the run is no longer exact)"
    assert found["iteration"] == 3
    assert found["promises"]["env_runners"] == "approximate"
    assert found["promises"]["policy_weights"] == "approximate"  # they came back, into a run that is another
    assert found["saved"] == "approximate"
    assert found["seeds"] == [8, 9]  # the run's seed and the index
    way_out = (
        '\nStart with the former settings, or with allow_changed={"num_env_runners"}: the run is then no'
    )
    assert way_out in found["refused"]
    # Fewer: the one that stays goes on, the other's state is left out, even where all else is strict.
    assert "\n  - num_env_runners: 2 -> 1\nStart" in found["refused fewer"]
    assert way_out in found["refused fewer"]
    assert found["fewer"] == [
        "num_env_runners: 2 -> 1 (allowed, so the run is no longer exact)",
        "env_runner 2: is gone, and what it held is left out",
    ]
    assert found["of fewer"] == "approximate"
    assert found["kept"] == found["here"][:1]
    assert len({*found["before"], *found["here"]}) == 4  # training moves each, and no two are alike
    assert found["again"] == []
    # None at all is another thing: there is no way out to offer.
    assert "\n  - num_env_runners: 2 -> 0\n" in found["refused none"]
    assert "allow_changed" not in found["refused none"]
    assert "\n  - num_env_runners: 0 cannot become another number, nor another number 0\n" in found["none"]


def test_a_setting_that_cannot_be_used_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="keep_last"):
        unbroken.rllib.checkpoints("runs/x", keep_last=0)

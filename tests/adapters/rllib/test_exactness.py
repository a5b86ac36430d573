"""The proof: an undisturbed run (U), the same killed and resumed in another process (R), and resumed with
one part left cold (C). R is U bit for bit; C is not, or the test would prove nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.rllib.cluster import Runner
from unbroken.capture.volatile import without_clocks
from unbroken.proving.roots import copy_starts
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare


@dataclass(frozen=True)
class Case:
    """`kill` counts iterations. Each of `cold` is a run of its own, with these places left as built."""

    name: str
    runners: int
    iterations: int
    kill: int
    cold: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.runners}"


THERE = "env_runners/<processes>/1"
PPO_COLD = (
    ("learner/curr_kl_coeffs_per_module",),
    ("env_runner/_ongoing_episodes", "env_runner/_cached_to_module"),
    ("env",),
    ("generators",),
)
DQN_COLD = (
    ("learner/last_update_ts_by_mid",),
    ("replay_buffer/rng",),
    ("replay_buffer/<_indices>", "replay_buffer/_sum_segment"),
    ("metrics",),
)
# The entropy coefficient's parameter, where a walk meets it first.
LOG_ALPHA = "learner/_named_optimizers/default_policy_alpha/param_groups/0/params/0"
SAC_COLD = ((LOG_ALPHA,), ("replay_buffer/rng",))
# The filter of the driver's runner, and those of both others: as each is built, it has counted nothing.
FILTER = "env_runner/_env_to_module/connectors/0/_filters"
EVERYWHERE = (FILTER, f"{THERE}/{FILTER}", f"env_runners/<processes>/2/{FILTER}")

CASES = [
    Case("ppo", 0, 6, 3, PPO_COLD[:1]),
    Case("dqn", 0, 4, 2, DQN_COLD[:1]),
    Case("ppo_with_filter", 2, 3, 1, ((f"{THERE}/generators",), EVERYWHERE)),
]
EVERY = [
    Case("ppo", 0, 8, 5, PPO_COLD),
    Case("ppo", 2, 6, 3, ((f"{THERE}/generators",), (f"{THERE}/env_runner/_ongoing_episodes",
                            f"{THERE}/env_runner/_cached_to_module"))),
    Case("dqn", 0, 8, 3, DQN_COLD),
    Case("dqn", 2, 6, 3, (*DQN_COLD, (f"{THERE}/generators",))),
    Case("sac", 0, 6, 3, SAC_COLD),
    Case("sac", 2, 6, 4, (SAC_COLD[0], (f"{THERE}/generators",))),
    Case("ppo_of_learners", 0, 4, 2, (("learners/<processes>/0/generators",),)),
    Case("ppo_of_two_learners", 0, 4, 2, (("learners/<processes>/1/generators",),)),
    Case("ppo_with_memory", 0, 4, 2, (("generators",),)),
    Case("ppo_with_filter", 0, 4, 2, ((FILTER,),)),
    Case("ppo_with_filter", 2, 4, 2, (EVERYWHERE, (f"{THERE}/{FILTER}",))),
    Case("ppo_with_evaluation", 0, 4, 2),
    Case("ppo_of_agents", 0, 6, 3, (("generators",),)),
    Case("ppo_of_agents", 2, 4, 2, ((f"{THERE}/generators",),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_killed_run_ends_as_the_undisturbed_one(
    case: Case, first: Runner, second: Runner, tmp_path: Path
) -> None:
    prove(case, first, second, tmp_path)


@pytest.mark.exactness
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_combination_ends_as_the_undisturbed_one(
    case: Case, first: Runner, second: Runner, tmp_path: Path
) -> None:
    prove(case, first, second, tmp_path)


def prove(case: Case, first: Runner, second: Runner, at: Path) -> None:
    order: dict[str, Any] = {
        "case": case.name, "runners": case.runners, "iterations": case.iterations, "log": str(at / "log"),
    }  # fmt: skip

    def said() -> str:
        return (at / "log").read_text()

    assert first.run(**order, root=str(at / "U"), out=str(at / "U.json")) == 0, said()
    copy_starts(at / "U", at / "R")  # Gymnasium's spaces are seeded by the system's entropy
    out = str(at / "R.json")
    assert first.run(**order, root=str(at / "R"), out=out, kill=case.kill) == -9, said()
    for i in range(len(case.cold)):
        shutil.copytree(at / "R", at / f"C{i}")
    assert second.run(**order, root=str(at / "R"), out=out) == 0, said()
    assert f"iteration {case.kill}" in said()

    expected, resumed = (json.loads((at / f"{x}.json").read_text()) for x in "UR")
    assert resumed == expected
    if case.name == "ppo_with_filter":
        assert all(runner["filters"] for runner in (expected["here"], *expected["there"]))
    assert differences(at / "U", at / "R") == []
    for i, places in enumerate(case.cold):
        forgot = at / f"C{i}.json"
        status = second.run(**order, root=str(at / f"C{i}"), out=str(forgot), cold=places)
        if status == 0:
            cold = json.loads(forgot.read_text())
            assert cold["weights"] != expected["weights"], f"{places} left cold changes nothing"
        else:
            # Open episodes without their environment: it was never reset, and cannot be stepped at all.
            assert status == 1 and any(place.endswith("env") for place in places), said()


def differences(one: Path, other: Path, job: str = "job") -> list[str]:
    states = []
    for root in (one, other):
        repository = Repository.open(root, job)
        commit = repository.commits()[0]
        assert commit.position == "end"
        states.append(repository.load(commit))
    return [str(d) for d in without_clocks(compare(*states), *states)]


def test_the_callback_changes_nothing_by_being_there(first: Runner, tmp_path: Path) -> None:
    order: dict[str, Any] = {"case": "ppo", "runners": 0, "iterations": 4, "log": str(tmp_path / "log")}
    assert first.run(**order, root=str(tmp_path / "a"), out=str(tmp_path / "with")) == 0
    assert first.run(**order, root=str(tmp_path / "b"), out=str(tmp_path / "without"), without=True) == 0
    assert (tmp_path / "with").read_text() == (tmp_path / "without").read_text()

"""Trials that fail, in one session of Ray. Run as a script: `ROOT retried|fast`. Writes `outcome.json`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

import unbroken.tune

ROOT, KIND = sys.argv[1:]
STEPS = 12


def once(name: str) -> bool:
    """Whether this is the first time that anybody asks for `name`."""
    try:
        Path(ROOT, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def train(config: dict[str, Any]) -> None:
    weights = np.zeros(3)
    generator = np.random.default_rng(config["seed"])
    np.random.seed(config["seed"])  # noqa: NPY002
    run = unbroken.tune.start(
        f"{ROOT}/checkpoints",
        config=config,
        trial=f"seed_{config['seed']}",
        every=2,
        keep_last=2,
        best=unbroken.tune.Best("score"),
        weights=weights,
        generator=generator,
    )
    for step in run.steps(STEPS):
        weights += generator.standard_normal(3)
        fails = config["fails"] if config["seed"] == 1 else ""
        if "killed" in fails and step == 5 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if "raises" in fails and step == 9 and once("raises"):
            raise RuntimeError("once")
        if "fast" in fails and step == 7 and once("fast"):
            raise RuntimeError("at once")
        run._trial.engine.wait()  # so that each save is made when it is due, whatever the load of the machine
        run.report({"score": float(10 - step)})


def experiment(
    name: str, fails: str, failure: tune.FailureConfig, *, storage: str = "tune", **kept: Any
) -> tune.Tuner:
    return tune.Tuner(
        train,
        param_space={"seed": tune.grid_search([1, 2]), "fails": fails},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(
            name=name,
            storage_path=f"{ROOT}/{storage}",
            verbose=0,
            failure_config=failure,
            checkpoint_config=tune.CheckpointConfig(**kept),
        ),
    )


def outcome(results: tune.ResultGrid) -> dict[str, Any]:
    return {
        "errors": [str(error) for error in results.errors],
        "checkpoints": [
            result.checkpoint.path
            for result in map(results.__getitem__, range(len(results)))
            if result.checkpoint is not None
        ],
    }


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    found: dict[str, Any] = {}
    found["whole"] = outcome(experiment("whole", "", tune.FailureConfig()).fit())
    if KIND == "retried":
        found["retried"] = outcome(
            experiment(
                "retried",
                "killed raises",
                tune.FailureConfig(max_failures=2),
                num_to_keep=1,
                checkpoint_score_attribute="score",
            ).fit()
        )
    else:
        found["fast"] = outcome(experiment("fast", "fast", tune.FailureConfig(fail_fast=True)).fit())
        found["again"] = outcome(experiment("fast", "", tune.FailureConfig(), storage="again").fit())
    Path(ROOT, "outcome.json").write_text(json.dumps(found))


main()

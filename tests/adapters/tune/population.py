"""Population based training that exploits: a function, and a class with and without reused processes.

Run as a script: `ROOT`. Writes `outcome.json`, and what every trial would draw next at each start and save
into `draws.jsonl`. Nothing of it is drawn: the generators are copied.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import unbroken.tune

ROOT = sys.argv[1]
STEPS = 5


class Walk:
    """A training whose score is what the learning rate makes of it."""

    def __init__(self, config: dict[str, Any]) -> None:
        random.seed(1)
        torch.manual_seed(1)
        self.net = torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=config["lr"], momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, constant)
        self.generator = np.random.default_rng(1)

    def parts(self) -> dict[str, Any]:
        return {"policy": self.net, "opt": self.opt, "schedule": self.schedule, "generator": self.generator}

    def go(self) -> float:
        self.opt.zero_grad()
        noise = (
            torch.as_tensor(self.generator.random(2), dtype=torch.float32) + torch.rand(2) * random.random()
        )
        self.net(noise).sum().backward()
        self.opt.step()
        self.schedule.step()
        return float(self.opt.param_groups[0]["lr"])

    def note(self, job: str, step: int, event: str) -> None:
        drawn = [
            copy.deepcopy(self.generator).random(),
            float(torch.rand(1, generator=torch.default_generator.clone_state())),
            copy.deepcopy(random._inst).random(),
        ]
        line = {"job": job, "step": step, "event": event, "pid": os.getpid(), "drawn": drawn}
        with Path(ROOT, "draws.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def constant(step: int) -> float:
    return 1.0


def function(config: dict[str, Any]) -> None:
    walk = Walk(config)
    run = unbroken.tune.start(f"{ROOT}/checkpoints", config=config, every=1, keep_last=1, **walk.parts())
    job = run._trial.settings.job
    for step in run.steps(STEPS):
        assert run.resumed is not None
        first = step == run.resumed.step
        walk.note(job, step, run.resumed.origin if first else "save")
        run.report({"score": walk.go()})


class Stepwise(unbroken.tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.walk = Walk(config)
        self.start(f"{ROOT}/checkpoints", every=1, keep_last=1, **self.walk.parts())

    def step(self) -> dict[str, Any]:
        assert self._trial is not None
        assert self.resumed is not None
        first = self.iteration == self.resumed.step
        self.walk.note(self._trial.settings.job, self.iteration, self.resumed.origin if first else "save")
        return {"score": self.walk.go(), "done": self.iteration + 1 >= STEPS}


def halved(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "lr": config["lr"] / 2}


def experiment(name: str, trainable: Any, *, reuse: bool, **checkpoints: Any) -> dict[str, Any]:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        quantile_fraction=0.5,
        synch=True,  # so that there is an exploit, whatever the load of the machine
        custom_explore_fn=halved,
    )
    results = tune.Tuner(
        trainable,
        param_space={"lr": tune.grid_search([0.001, 0.032])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, reuse_actors=reuse),
        run_config=tune.RunConfig(
            name=name,
            storage_path=f"{ROOT}/tune",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(**checkpoints),
        ),
    ).fit()
    return {
        "errors": [str(error) for error in results.errors],
        "lr": {
            result.metrics["trial_id"]: result.config["lr"]
            for result in map(results.__getitem__, range(len(results)))
            if result.metrics is not None and result.config is not None
        },
    }


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    outcome = {
        "function": experiment("function", function, reuse=False),
        "reused": experiment("reused", Stepwise, reuse=True, checkpoint_at_end=True),
        "anew": experiment("anew", Stepwise, reuse=False, num_to_keep=2, checkpoint_frequency=1),
    }
    Path(ROOT, "outcome.json").write_text(json.dumps(outcome))


main()

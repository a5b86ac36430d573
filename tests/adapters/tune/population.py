"""Population based training that exploits: a function, and a class with and without reused processes.

Run as a script: `ROOT function|reused|anew`. Writes `outcome.json`, and what every trial would draw next at each start and save
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
from numpy.typing import NDArray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import unbroken.tune

ROOT, EXPERIMENT = sys.argv[1:]
STEPS = 4


class Momentum:
    """An optimizer without a framework: a process that need not load one starts in a third of the time."""

    def __init__(self, weights: NDArray[np.float64], lr: float) -> None:
        self.weights = weights
        self.velocity = np.zeros_like(weights)
        self.param_groups = [{"lr": lr, "momentum": 0.9}]

    def go(self, gradient: NDArray[np.float64]) -> None:
        group = self.param_groups[0]
        self.velocity = group["momentum"] * self.velocity + gradient
        self.weights -= group["lr"] * self.velocity


class Walk:
    """A training whose score is its learning rate."""

    def __init__(self, config: dict[str, Any]) -> None:
        random.seed(1)
        self.generator = np.random.default_rng(1)
        self.opt: Any = Momentum(np.zeros(2), config["lr"])

    def parts(self) -> dict[str, Any]:
        return {"opt": self.opt, "generator": self.generator}

    def go(self) -> float:
        self.opt.go(self.generator.random(2) + random.random())
        return float(self.opt.param_groups[0]["lr"])

    def draws(self) -> list[float]:
        return [copy.deepcopy(self.generator).random(), copy.deepcopy(random._inst).random()]

    def note(self, job: str, step: int, event: str) -> None:
        line = {"job": job, "step": step, "event": event, "pid": os.getpid(), "drawn": self.draws()}
        with Path(ROOT, "draws.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


class TorchWalk(Walk):
    """The same with an optimizer of PyTorch and a schedule, which changes what the optimizer holds."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        import torch

        torch.manual_seed(1)
        self.torch: Any = torch
        self.net: Any = torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=config["lr"], momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, constant)

    def parts(self) -> dict[str, Any]:
        return {**super().parts(), "policy": self.net, "schedule": self.schedule}

    def go(self) -> float:
        self.opt.zero_grad()
        self.net(self.torch.rand(2) + float(self.generator.random())).sum().backward()
        self.opt.step()
        self.schedule.step()
        return float(self.opt.param_groups[0]["lr"])

    def draws(self) -> list[float]:
        own = self.torch.default_generator.clone_state()
        return [*super().draws(), float(self.torch.rand(1, generator=own))]


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
        run._trial.engine.wait()  # a step takes no time here: what a report offers would be steps older than it
        run.report({"score": walk.go()})


class Stepwise(unbroken.tune.Trainable):
    kind = Walk

    def setup(self, config: dict[str, Any]) -> None:
        self.walk = self.kind(config)
        self.start(f"{ROOT}/checkpoints", every=1, keep_last=1, **self.walk.parts())

    def step(self) -> dict[str, Any]:
        assert self._trial is not None
        assert self.resumed is not None
        first = self.iteration == self.resumed.step
        self.walk.note(self._trial.settings.job, self.iteration, self.resumed.origin if first else "save")
        return {"score": self.walk.go(), "done": self.iteration + 1 >= STEPS}


class TorchStepwise(Stepwise):
    kind = TorchWalk


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
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    if EXPERIMENT == "function":
        outcome = experiment("function", function, reuse=False)
    elif EXPERIMENT == "reused":
        outcome = experiment("reused", TorchStepwise, reuse=True, checkpoint_at_end=True)
    else:
        outcome = experiment("anew", Stepwise, reuse=False, num_to_keep=2, checkpoint_frequency=1)
    Path(ROOT, "outcome.json").write_text(json.dumps(outcome))


main()

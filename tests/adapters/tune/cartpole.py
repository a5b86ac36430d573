"""An experiment that is killed: REINFORCE on CartPole, three trials, two at a time. Run as a script.

`ROOT COLD`: COLD `optimizer` or `generators` leaves that part as new after a restore. With `KILL_AT` in the
environment the driver kills itself with the first report of a step that is not below it. The same command goes on.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator
from torch import nn

import unbroken.tune

ROOT, COLD = sys.argv[1:]
STEPS = 30


def train(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    random.seed(config["seed"])
    torch.manual_seed(config["seed"])
    np.random.seed(config["seed"])  # noqa: NPY002
    env = gym.make("CartPole-v1")
    env.action_space.seed(config["seed"])
    net = nn.Linear(4, 2)
    opt = torch.optim.Adam(net.parameters(), lr=config["lr"])
    run = unbroken.tune.start(
        f"{ROOT}/checkpoints", config=config, every=4, keep_last=2, policy=net, optimizer=opt, env=env
    )
    run.vars.obs, _ = env.reset(seed=config["seed"])
    for step in run.steps(STEPS):
        assert run.resumed is not None
        if run.resumed.restored and run.resumed.step == step:
            if COLD == "optimizer":
                opt.state.clear()
            elif COLD == "generators":
                torch.manual_seed(99)
        losses: list[Any] = []
        rewards = 0.0
        for _ in range(8):
            policy: Any = torch.distributions.Categorical(logits=net(torch.as_tensor(run.vars.obs)))
            action = policy.sample()
            run.vars.obs, reward, terminated, truncated, _ = env.step(action.item())
            losses.append(-policy.log_prob(action) * float(reward))
            rewards += float(reward) * float(np.random.random())  # noqa: NPY002
            if terminated or truncated:
                run.vars.obs, _ = env.reset()
        opt.zero_grad()
        loss: Any = torch.stack(losses).sum()
        loss.backward()
        opt.step()
        # So that a driver that is killed leaves checkpoints, however slow the disk is.
        run._trial.engine.wait()
        run.report({"reward": rewards, "step": step})


class Killer(tune.Callback):
    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if int(os.environ.get("KILL_AT", STEPS)) <= result["step"]:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    path = f"{ROOT}/tune/cartpole"
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, train, resume_unfinished=True, resume_errored=True)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"lr": tune.loguniform(1e-3, 1e-1), "seed": tune.randint(0, 1000)},
            tune_config=tune.TuneConfig(num_samples=3, search_alg=BasicVariantGenerator(random_state=7)),
            run_config=tune.RunConfig(
                name="cartpole", storage_path=f"{ROOT}/tune", verbose=0, callbacks=[Killer()]
            ),
        )
    results = tuner.fit()
    print("trials", len(results), "errors", results.num_errors)


main()

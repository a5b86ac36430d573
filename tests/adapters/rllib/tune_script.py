"""An experiment of two trials: `tune_script.py <folder>`; it goes on where an earlier start was killed.

While there is a file `hold` in the folder, trials wait at two of their iterations, until it is removed or they are killed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import ray
from ray import tune

import unbroken.rllib
from tests.adapters.rllib import trainings

FOLDER = sys.argv[1]
ROOT = f"{FOLDER}/R"
RATES = (0.001, 0.01)
ITERATIONS = 6


def config_of(rate: Any) -> Any:
    config = trainings.ppo(0, lr=rate)
    return config.callbacks(
        unbroken.rllib.checkpoints(ROOT, job="job", every=1, keep_first=True),
        on_train_result=wait_where_held,
    )


def wait_where_held(*, algorithm: Any, **_: Any) -> None:
    """Let no trial go beyond its third iteration in a driver that is to be killed, nor to its end in the next one."""
    until = time.monotonic() + 600
    while algorithm.training_iteration in (3, ITERATIONS - 1) and os.path.exists(f"{FOLDER}/hold"):
        assert time.monotonic() < until
        time.sleep(0.01)


def main() -> None:
    ray.init(log_to_driver=True, logging_level=logging.ERROR)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    experiment = f"{FOLDER}/tune/experiment"
    space = config_of(tune.grid_search(list(RATES)))
    if tune.Tuner.can_restore(experiment):
        tuner = tune.Tuner.restore(experiment, "PPO", param_space=space)
    else:
        run = tune.RunConfig(
            name="experiment",
            storage_path=f"{FOLDER}/tune",
            stop={"training_iteration": ITERATIONS},
            verbose=0,
        )
        tuner = tune.Tuner("PPO", param_space=space, run_config=run)
    results = tuner.fit()
    for result in (results[i] for i in range(len(results))):
        assert result.error is None, result.error
    ray.shutdown()


if __name__ == "__main__":
    main()

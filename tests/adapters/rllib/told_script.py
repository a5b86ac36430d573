"""An Algorithm in a driver of its own that is told to end in an iteration: `told_script.py ROOT ITERATION`."""

import os
import signal
import sys
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig

import unbroken.rllib

root, at = sys.argv[1], int(sys.argv[2])
ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
config: Any = (
    PPOConfig()  # type: ignore[no-untyped-call]
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0)
    .training(train_batch_size=200, minibatch_size=100, num_epochs=1)
    .debugging(seed=0)
    .reporting(min_time_s_per_iteration=0)
    .callbacks(unbroken.rllib.checkpoints(root, job="run", every=10_000))
)
algo: Any = config.build_algo()
while algo.training_iteration < 4:
    if algo.training_iteration == at:
        for _ in range(10):
            os.kill(os.getpid(), signal.SIGTERM)
    algo.train()
algo.stop()

"""PPO on CartPole with RLlib and two env runners. Kill it at any moment and start it again."""

import ray
from ray.rllib.algorithms.ppo import PPOConfig

import unbroken.rllib

ray.init(num_cpus=3, include_dashboard=False)

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=2)
    .training(train_batch_size=400, minibatch_size=100, num_epochs=4)
    .debugging(seed=0)
    # So that steps decide how long an iteration is, and not the clock.
    .reporting(min_time_s_per_iteration=0)
    .callbacks(unbroken.rllib.checkpoints("runs/rllib_ppo", every=1_000))
)

algo = config.build_algo()
while algo.training_iteration < 30:
    algo.train()
algo.stop()

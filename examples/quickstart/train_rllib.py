"""PPO on CartPole with RLlib. Kill it at any moment and start it again."""

import hashlib

import ray
from ray.rllib.algorithms.ppo import PPOConfig

import unbroken.rllib

ray.init(num_cpus=2, include_dashboard=False)

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1)
    .training(train_batch_size=400, minibatch_size=100, num_epochs=4)
    .debugging(seed=0)
    # So that steps decide how long an iteration is, and not the clock.
    .reporting(min_time_s_per_iteration=0)
    .callbacks(unbroken.rllib.checkpoints("runs", job="rllib", every=1_000))
)

algo = config.build_algo()
while algo.training_iteration < 20:  # in all, over every start
    algo.train()

state = algo.get_module().state_dict()
weights = b"".join(value.numpy().tobytes() for value in state.values())
print(f"{algo.training_iteration} iterations, weights {hashlib.sha256(weights).hexdigest()[:16]}")
algo.stop()

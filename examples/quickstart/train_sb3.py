"""PPO on CartPole with Stable-Baselines3. Kill it at any moment and start it again."""

import hashlib

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from unbroken.sb3 import CheckpointCallback

env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
model = PPO("MlpPolicy", env, n_steps=128, seed=0)

model.learn(
    10_000,  # in all, over every start
    callback=CheckpointCallback(save_freq=250, save_path="runs", name_prefix="sb3"),
)

weights = b"".join(p.detach().numpy().tobytes() for p in model.policy.parameters())
print(f"{model.num_timesteps} steps, weights {hashlib.sha256(weights).hexdigest()[:16]}")

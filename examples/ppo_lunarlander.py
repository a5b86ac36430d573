"""PPO on LunarLander, whose simulator gives no state away: its episodes come back by replaying their actions."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=100_000)
parser.add_argument("--save-path", default="runs/ppo_lunarlander")
parser.add_argument("--save-freq", type=int, default=250, help="calls of env.step between two saves")
args = parser.parse_args()

env = make_vec_env("LunarLander-v3", n_envs=4, seed=0)
model = PPO(
    "MlpPolicy", env, n_steps=512, batch_size=128, gae_lambda=0.98, gamma=0.999, ent_coef=0.01, seed=0
)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

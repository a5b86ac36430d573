"""PPO on MuJoCo's HalfCheetah with normalized observations and rewards."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=100_000)
parser.add_argument("--save-path", default="runs/ppo_halfcheetah")
parser.add_argument("--save-freq", type=int, default=1_000, help="calls of env.step between two saves")
args = parser.parse_args()

env = VecNormalize(make_vec_env("HalfCheetah-v5", n_envs=2, seed=0))
model = PPO("MlpPolicy", env, n_steps=512, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

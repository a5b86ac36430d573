"""A2C on CartPole with four environments."""

import argparse

from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=50_000)
parser.add_argument("--save-path", default="runs/a2c_cartpole")
parser.add_argument("--save-freq", type=int, default=500, help="calls of env.step between two saves")
args = parser.parse_args()

env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
model = A2C("MlpPolicy", env, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

"""DQN on Atari's Pong from pixels, with SB3's Atari wrappers, stacked frames and sticky actions."""

import argparse

import ale_py
import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=20_000)
parser.add_argument("--save-path", default="runs/dqn_pong")
parser.add_argument("--save-freq", type=int, default=1_000, help="calls of env.step between two saves")
args = parser.parse_args()

gym.register_envs(ale_py)
env = VecFrameStack(make_atari_env("ALE/Pong-v5", n_envs=1, seed=0), n_stack=4)
model = DQN("CnnPolicy", env, buffer_size=2_000, learning_starts=200, train_freq=8, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

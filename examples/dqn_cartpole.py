"""DQN on CartPole: the replay buffer comes back too, and exploration goes on at the same rate."""

import argparse

import gymnasium as gym
from stable_baselines3 import DQN

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=50_000)
parser.add_argument("--save-path", default="runs/dqn_cartpole")
parser.add_argument("--save-freq", type=int, default=2_000, help="calls of env.step between two saves")
args = parser.parse_args()

model = DQN("MlpPolicy", gym.make("CartPole-v1"), buffer_size=50_000, learning_starts=500, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

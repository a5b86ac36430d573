"""SAC on Pendulum."""

import argparse

import gymnasium as gym
from stable_baselines3 import SAC

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=10_000)
parser.add_argument("--save-path", default="runs/sac_pendulum")
parser.add_argument("--save-freq", type=int, default=1_000, help="calls of env.step between two saves")
args = parser.parse_args()

model = SAC("MlpPolicy", gym.make("Pendulum-v1"), buffer_size=20_000, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

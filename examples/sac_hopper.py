"""SAC on MuJoCo's Hopper: the whole simulator comes back, and every row of the replay buffer."""

import argparse

import gymnasium as gym
from stable_baselines3 import SAC

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=50_000)
parser.add_argument("--save-path", default="runs/sac_hopper")
parser.add_argument("--save-freq", type=int, default=500, help="calls of env.step between two saves")
args = parser.parse_args()

model = SAC("MlpPolicy", gym.make("Hopper-v5"), buffer_size=100_000, learning_starts=1_000, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

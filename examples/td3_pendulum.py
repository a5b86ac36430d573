"""TD3 on Pendulum with correlated action noise, whose state is part of the run."""

import argparse

import gymnasium as gym
import numpy as np
from stable_baselines3 import TD3
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=10_000)
parser.add_argument("--save-path", default="runs/td3_pendulum")
parser.add_argument("--save-freq", type=int, default=1_000, help="calls of env.step between two saves")
args = parser.parse_args()

noise = OrnsteinUhlenbeckActionNoise(mean=np.zeros(1), sigma=0.2 * np.ones(1))
model = TD3("MlpPolicy", gym.make("Pendulum-v1"), buffer_size=20_000, action_noise=noise, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

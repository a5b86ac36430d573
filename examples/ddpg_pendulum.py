"""DDPG on Pendulum with Gaussian action noise."""

import argparse

import gymnasium as gym
import numpy as np
from stable_baselines3 import DDPG
from stable_baselines3.common.noise import NormalActionNoise

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=10_000)
parser.add_argument("--save-path", default="runs/ddpg_pendulum")
parser.add_argument("--save-freq", type=int, default=1_000, help="calls of env.step between two saves")
args = parser.parse_args()

noise = NormalActionNoise(mean=np.zeros(1), sigma=0.1 * np.ones(1))
model = DDPG("MlpPolicy", gym.make("Pendulum-v1"), buffer_size=20_000, action_noise=noise, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

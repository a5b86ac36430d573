"""QR-DQN of sb3-contrib in MiniGrid's world of doors and keys."""

import argparse

import minigrid.wrappers
from sb3_contrib import QRDQN
from stable_baselines3.common.env_util import make_vec_env

from unbroken.sb3 import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=50_000)
parser.add_argument("--save-path", default="runs/qrdqn_minigrid")
parser.add_argument("--save-freq", type=int, default=500, help="calls of env.step between two saves")
args = parser.parse_args()

env = make_vec_env("MiniGrid-DoorKey-5x5-v0", seed=0, wrapper_class=minigrid.wrappers.ImgObsWrapper)
model = QRDQN("MlpPolicy", env, buffer_size=20_000, learning_starts=1_000, seed=0)
model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))

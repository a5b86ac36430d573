"""PPO on CartPole with four environments, each in a process of its own."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

from unbroken.sb3 import CheckpointCallback


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--save-path", default="runs/ppo_subproc")
    parser.add_argument("--save-freq", type=int, default=500, help="calls of env.step between two saves")
    args = parser.parse_args()

    env = make_vec_env("CartPole-v1", n_envs=4, seed=0, vec_env_cls=SubprocVecEnv)
    model = PPO("MlpPolicy", env, n_steps=256, seed=0)
    model.learn(args.timesteps, callback=CheckpointCallback(args.save_freq, args.save_path))


if __name__ == "__main__":  # the processes of the environments import this file
    main()

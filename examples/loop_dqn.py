"""DQN on CartPole, written by hand: what it takes to make a loop of one's own unbreakable.

Three things: `run.track` what is changed in place, keep in `run.vars` what the loop carries from one step
to the next, and iterate over `run.steps`. Kill it whenever you like and start it again.
"""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import unbroken

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=20_000)
parser.add_argument("--save-path", default="runs/loop_dqn")
parser.add_argument("--save-every", type=int, default=1_000, help="steps between two saves")
args = parser.parse_args()


class ReplayBuffer:
    """The newest transitions. The ring's declaration lets rows that were never written cost nothing."""

    __unbroken_ring__ = unbroken.Ring(
        ("obs", "next_obs", "actions", "rewards", "dones"), position="pos", full="full"
    )

    def __init__(self, capacity, obs_size):
        self.obs = np.zeros((capacity, obs_size), np.float32)
        self.next_obs = np.zeros((capacity, obs_size), np.float32)
        self.actions = np.zeros((capacity, 1), np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.pos, self.full = 0, False

    def __len__(self):
        return len(self.rewards) if self.full else self.pos

    def add(self, obs, next_obs, action, reward, done):
        row = self.pos
        self.obs[row], self.next_obs[row], self.actions[row] = obs, next_obs, action
        self.rewards[row], self.dones[row] = reward, done
        self.pos = (row + 1) % len(self.rewards)
        self.full = self.full or self.pos == 0

    def sample(self, size, rng):
        rows = rng.integers(0, len(self), size)
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return [torch.as_tensor(column[rows]) for column in columns]


def q_network(obs_size, actions):
    return nn.Sequential(
        nn.Linear(obs_size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions)
    )


random.seed(1)
torch.manual_seed(1)
rng = np.random.default_rng(1)

env = gym.make("CartPole-v1")
env.action_space.seed(1)
net, target = q_network(4, 2), q_network(4, 2)
target.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
buffer = ReplayBuffer(10_000, 4)

run = unbroken.Run(args.save_path, every=args.save_every)
run.track(policy=net, target=target, optimizer=optimizer, buffer=buffer, env=env, rng=rng)
v = run.vars
v.obs, _ = env.reset(seed=1)
v.episode_return = 0.0

for step in run.steps(args.timesteps):
    epsilon = max(0.05, 1.0 - step / (0.5 * args.timesteps))
    if random.random() < epsilon:
        action = env.action_space.sample()
    else:
        with torch.no_grad():
            action = net(torch.as_tensor(v.obs)).argmax().item()

    next_obs, reward, terminated, truncated, _ = env.step(action)
    buffer.add(v.obs, next_obs, action, reward, terminated)
    v.obs = next_obs
    v.episode_return += float(reward)
    if terminated or truncated:
        run.record(episodes=1, episode_return=v.episode_return)
        v.obs, _ = env.reset()
        v.episode_return = 0.0

    if step >= 500:
        obs, following, actions, rewards, dones = buffer.sample(64, rng)
        with torch.no_grad():
            goal = rewards + 0.99 * target(following).max(dim=1).values * (1.0 - dones)
        loss = nn.functional.mse_loss(net(obs).gather(1, actions).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            target.load_state_dict(net.state_dict())

print(f"{run.episodes} episodes in {args.timesteps} steps")

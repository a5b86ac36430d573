"""DQN on CartPole with prioritized replay, written by hand, on a buffer that a checkpoint captures by its new rows.

As in loop_dqn.py: `run.track` what is changed in place, keep in `run.vars` what the loop carries from one
step to the next, and iterate over `run.steps`. Kill it whenever you like and start it again.
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
parser.add_argument("--save-path", default="runs/loop_prioritized_dqn")
parser.add_argument("--save-every", type=int, default=1_000, help="steps between two saves")
args = parser.parse_args()


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
buffer = unbroken.PrioritizedReplayBuffer(
    10_000,
    {
        "obs": ((4,), np.float32),
        "next_obs": ((4,), np.float32),
        "action": ((1,), np.int64),
        "reward": ((), np.float32),
        "done": ((), np.float32),
    },
)

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
    buffer.add(obs=v.obs, next_obs=next_obs, action=action, reward=reward, done=terminated)
    v.obs = next_obs
    v.episode_return += float(reward)
    if terminated or truncated:
        run.record(episodes=1, episode_return=v.episode_return)
        v.obs, _ = env.reset()
        v.episode_return = 0.0

    if step >= 500:
        beta = min(1.0, 0.4 + 0.6 * step / args.timesteps)
        drawn = buffer.sample(64, rng, beta=beta)
        obs, next_obs, actions, rewards, dones = (
            torch.as_tensor(drawn.rows[name]) for name in ("obs", "next_obs", "action", "reward", "done")
        )
        with torch.no_grad():
            goal = rewards + 0.99 * target(next_obs).max(dim=1).values * (1.0 - dones)
        error = net(obs).gather(1, actions).squeeze(1) - goal
        buffer.update(drawn.indices, error.detach().abs().numpy())
        loss = (torch.as_tensor(drawn.weights, dtype=torch.float32) * error**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            target.load_state_dict(net.state_dict())

print(f"{run.episodes} episodes in {args.timesteps} steps")

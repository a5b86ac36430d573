"""DQN on CartPole with prioritized replay in one file, without Unbroken. dqn_prioritized.py is this file with it."""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--timesteps", type=int, default=50_000)
parser.add_argument("--learning-rate", type=float, default=5e-4)
parser.add_argument("--buffer-size", type=int, default=10_000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--alpha", type=float, default=0.6, help="how much priorities count")
parser.add_argument("--beta", type=float, default=0.4, help="how far weights correct for them at the start")
parser.add_argument("--learning-starts", type=int, default=500)
parser.add_argument("--train-frequency", type=int, default=2)
parser.add_argument("--target-frequency", type=int, default=250)


class Trees:
    """Two binary trees over the priorities: of each pair the sum, and the smaller one. Node 1 is the root."""

    def __init__(self, capacity):
        self.width = 1 << (capacity - 1).bit_length()
        self.sums = np.zeros(2 * self.width)
        self.least = np.full(2 * self.width, np.inf)

    def set(self, leaves, values):
        nodes = np.asarray(leaves) + self.width
        self.sums[nodes] = self.least[nodes] = values
        while (nodes := np.unique(nodes >> 1))[0]:
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]
            self.least[nodes] = np.minimum(self.least[2 * nodes], self.least[2 * nodes + 1])

    def find(self, marks):
        nodes = np.ones(len(marks), np.int64)
        while nodes[0] < self.width:
            left = self.sums[2 * nodes]
            right = (marks >= left) & (self.sums[2 * nodes + 1] > 0)
            marks = np.where(right, marks - left, marks)
            nodes = 2 * nodes + right
        return nodes - self.width


class PrioritizedReplay:
    """The newest transitions, each drawn the more often the larger its last error was."""

    def __init__(self, capacity, observations, alpha):
        self.obs = np.zeros((capacity, observations), np.float32)
        self.next_obs = np.zeros((capacity, observations), np.float32)
        self.actions = np.zeros((capacity, 1), np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.trees = Trees(capacity)
        self.alpha, self.largest = alpha, 1.0
        self.pos, self.full = 0, False

    def __len__(self):
        return len(self.rewards) if self.full else self.pos

    def add(self, obs, next_obs, action, reward, done):
        row = self.pos
        self.obs[row], self.next_obs[row], self.actions[row] = obs, next_obs, action
        self.rewards[row], self.dones[row] = reward, done
        self.trees.set([row], self.largest**self.alpha)
        self.pos = (row + 1) % len(self.rewards)
        self.full = self.full or self.pos == 0

    def sample(self, size, beta):
        marks = (np.arange(size) + np.random.random(size)) * (self.trees.sums[1] / size)
        rows = self.trees.find(marks)
        weights = (self.trees.sums[self.trees.width + rows] / self.trees.least[1]) ** -beta
        columns = (
            self.obs,
            self.next_obs,
            self.actions,
            self.rewards,
            self.dones,
            weights.astype(np.float32),
        )
        picked = [torch.as_tensor(column[rows]) for column in columns[:5]]
        return rows, [*picked, torch.as_tensor(columns[5])]

    def update(self, rows, errors):
        errors = np.abs(errors) + 1e-6
        self.largest = max(self.largest, errors.max())
        self.trees.set(rows, errors**self.alpha)


def q_network(observations, actions):
    return nn.Sequential(
        nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    env.action_space.seed(args.seed)
    observations, n_actions = env.observation_space.shape[0], env.action_space.n
    net, target = q_network(observations, n_actions), q_network(observations, n_actions)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
    buffer = PrioritizedReplay(args.buffer_size, observations, args.alpha)
    obs, _ = env.reset(seed=args.seed)

    for step in range(args.timesteps):
        if random.random() < max(0.05, 1.0 - step / (0.5 * args.timesteps)):
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = net(torch.as_tensor(obs)).argmax().item()
        next_obs, reward, terminated, truncated, info = env.step(action)
        buffer.add(obs, next_obs, action, reward, terminated)
        obs = next_obs
        if terminated or truncated:
            print(f"global_step={step}, episodic_return={info['episode']['r']:.1f}")
            obs, _ = env.reset()

        if step < args.learning_starts:
            continue
        if step % args.train_frequency == 0:
            beta = args.beta + (1.0 - args.beta) * step / args.timesteps
            rows, (b_obs, b_next, b_actions, b_rewards, b_dones, weights) = buffer.sample(
                args.batch_size, beta
            )
            with torch.no_grad():
                goal = b_rewards + args.gamma * target(b_next).max(dim=1).values * (1.0 - b_dones)
            errors = net(b_obs).gather(1, b_actions).squeeze(1) - goal
            loss = (weights * errors.square()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            buffer.update(rows, errors.detach().numpy())
        if step % args.target_frequency == 0:
            target.load_state_dict(net.state_dict())

    env.close()

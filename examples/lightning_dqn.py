"""DQN on CartPole with PyTorch Lightning: one callback makes it unbreakable.

The dataset plays a few steps with the current policy and then samples a batch; environment, buffer and
generators are attributes of the module. Kill it whenever you like and start it again.
"""

import argparse
import random

import gymnasium as gym
import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from unbroken.lightning import CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2_000)
parser.add_argument("--save-path", default="runs/lightning_dqn")
parser.add_argument("--save-every", type=int, default=100, help="optimizer steps between two saves")
args = parser.parse_args()


class ReplayBuffer:
    def __init__(self, capacity):
        self.obs = np.zeros((capacity, 4), np.float32)
        self.next_obs = np.zeros((capacity, 4), np.float32)
        self.actions = np.zeros((capacity, 1), np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.adds = 0
        self.rng = np.random.default_rng(1)

    def add(self, obs, next_obs, action, reward, done):
        row = self.adds % len(self.obs)
        self.obs[row], self.next_obs[row], self.actions[row] = obs, next_obs, action
        self.rewards[row], self.dones[row] = reward, done
        self.adds += 1

    def sample(self, size):
        rows = self.rng.integers(0, min(self.adds, len(self.obs)), size)
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return tuple(torch.as_tensor(column[rows]) for column in columns)


class Experience(IterableDataset):
    def __init__(self, agent):
        self.agent = agent

    def __iter__(self):
        while True:
            for _ in range(4):
                self.agent.play()
            yield self.agent.buffer.sample(64)


class DQN(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.target = self.network(), self.network()
        self.target.load_state_dict(self.net.state_dict())
        self.env = gym.make("CartPole-v1")
        self.buffer = ReplayBuffer(10_000)
        self.epsilon = 1.0
        self.episode_return = 0.0
        self.obs, _ = self.env.reset(seed=1)

    def network(self):
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def play(self):
        if random.random() < self.epsilon:
            action = random.randrange(2)
        else:
            with torch.no_grad():
                action = self.net(torch.as_tensor(self.obs)).argmax().item()
        next_obs, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.add(self.obs, next_obs, action, reward, terminated)
        self.obs, self.episode_return = next_obs, self.episode_return + float(reward)
        self.epsilon = max(0.05, self.epsilon * 0.999)
        if terminated or truncated:
            self.last_return, self.episode_return = self.episode_return, 0.0
            self.obs, _ = self.env.reset()

    def training_step(self, batch, batch_idx):
        obs, next_obs, actions, rewards, dones = batch
        with torch.no_grad():
            goal = rewards + 0.99 * self.target(next_obs).max(dim=1).values * (1.0 - dones)
        loss = nn.functional.smooth_l1_loss(self.net(obs).gather(1, actions).squeeze(1), goal)
        self.log("loss", loss, batch_size=64)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx % 100 == 99:
            self.target.load_state_dict(self.net.state_dict())

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def train_dataloader(self):
        return DataLoader(Experience(self), batch_size=None)


lightning.seed_everything(1)
module = DQN()
trainer = lightning.Trainer(
    max_steps=args.steps,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[CheckpointCallback(args.save_path, every=args.save_every)],
)
trainer.fit(module)
print(f"{module.buffer.adds} environment steps, the last full episode returned {module.last_return:.0f}")

"""REINFORCE on CartPole with PyTorch Lightning. Kill it at any moment and start it again."""

import hashlib

import gymnasium as gym
import lightning
import torch
from torch.utils.data import DataLoader, IterableDataset

from unbroken.lightning import CheckpointCallback


class Episodes(IterableDataset):
    def __init__(self, agent):
        self.agent = agent

    def __iter__(self):
        while True:
            yield self.agent.play()  # with the policy as it is at that moment; one episode is a batch


class Agent(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
        self.env = gym.make("CartPole-v1")
        self.env.reset(seed=0)

    def play(self):
        seen, actions, rewards, over = [], [], [], False
        obs, _ = self.env.reset()
        while not over:
            seen.append(torch.as_tensor(obs))
            with torch.no_grad():
                actions.append(torch.distributions.Categorical(logits=self.policy(seen[-1])).sample())
            obs, reward, terminated, truncated, _ = self.env.step(actions[-1].item())
            rewards.append(float(reward))
            over = terminated or truncated
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(seen), torch.stack(actions), returns

    def training_step(self, batch, batch_idx):
        seen, actions, returns = batch
        chosen = torch.distributions.Categorical(logits=self.policy(seen))
        return -(chosen.log_prob(actions) * (returns - returns.mean())).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def train_dataloader(self):
        return DataLoader(Episodes(self), batch_size=None)


lightning.seed_everything(0)
agent = Agent()
checkpoints = CheckpointCallback("runs", job="lightning", every=50)
options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(max_steps=400, accelerator="cpu", callbacks=[checkpoints], **options).fit(agent)
weights = b"".join(p.detach().numpy().tobytes() for p in agent.parameters())
print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}")

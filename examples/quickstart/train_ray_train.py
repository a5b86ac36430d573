"""REINFORCE on CartPole with two workers of Ray Train. Kill a worker, the driver or all, and start it again."""

import hashlib
import os

import gymnasium as gym
import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

import unbroken.ray_train


def train(config):
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    env = gym.make("CartPole-v1")
    env.reset(seed=rank)
    policy = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    ckpt = unbroken.ray_train.start(config["root"], every=5, policy=policy, optimizer=optimizer, env=env)
    for iteration in ckpt.steps(40):  # in all, over every start
        seen, actions, rewards, over = [], [], [], False
        obs, _ = env.reset()
        while not over:
            seen.append(torch.as_tensor(obs))
            with torch.no_grad():
                actions.append(torch.distributions.Categorical(logits=policy(seen[-1])).sample())
            obs, reward, terminated, truncated, _ = env.step(actions[-1].item())
            rewards.append(float(reward))
            over = terminated or truncated
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        chosen = torch.distributions.Categorical(logits=policy(torch.stack(seen)))
        loss = -(chosen.log_prob(torch.stack(actions)) * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = b"".join(p.detach().numpy().tobytes() for p in policy.parameters())
        digest = hashlib.sha256(weights).hexdigest()[:16]
        ckpt.report({"reward": sum(rewards), "loss": loss.item(), "weights": digest}, epoch=iteration)


# Ray takes a worker's reports every 2 seconds by itself; these iterations are shorter.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
ray.init(num_cpus=2, include_dashboard=False)
result = ray.train.torch.TorchTrainer(
    train,
    train_loop_config={"root": os.path.abspath("runs")},  # each worker runs in a directory of its own
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(
        name="ray_train",  # the same at every start, and the name of the run below the root
        storage_path=os.path.abspath("runs/ray"),
        failure_config=ray.train.FailureConfig(max_failures=3),
    ),
).fit()
print(f"weights {result.metrics['weights']}")

"""REINFORCE on CartPole with four learning rates, by Ray Tune. Kill it at any moment and start it again."""

import hashlib
import os

import gymnasium as gym
import ray
import torch
from ray import tune
from torch import nn

import unbroken.tune

ROOT = os.path.abspath("runs")  # each trial runs in a directory of its own


def train(config):
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=config["lr"])

    run = unbroken.tune.start(ROOT, config=config, every=5, policy=policy, optimizer=optimizer, env=env)
    for _ in run.steps(40):  # episodes of each trial, in all, over every start
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
        # A number, as all that a trial is to say again where Tune's own record has lost it.
        run.report({"reward": sum(rewards), "weights": int(hashlib.sha256(weights).hexdigest()[:12], 16)})


ray.init(num_cpus=2, include_dashboard=False)
record = os.path.join(ROOT, "tune", "quickstart")
if tune.Tuner.can_restore(record):
    tuner = tune.Tuner.restore(record, train, resume_unfinished=True, resume_errored=True)
else:
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1e-3, 3e-3, 1e-2, 3e-2])},
        run_config=tune.RunConfig(name="quickstart", storage_path=os.path.join(ROOT, "tune"), verbose=0),
    )
for result in tuner.fit():
    print(f"lr {result.config['lr']}: weights {int(result.metrics['weights']):012x}")

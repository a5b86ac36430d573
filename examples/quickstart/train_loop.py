"""REINFORCE on CartPole in a loop of one's own. Kill it at any moment and start it again."""

import hashlib

import gymnasium as gym
import torch
from torch import nn

import unbroken

torch.manual_seed(0)
env = gym.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

run = unbroken.Run("runs", job="loop", every=500)  # steps; leave it out to lose 5 minutes at most
run.track(policy=policy, optimizer=optimizer, env=env)  # what is changed in place
run.vars.obs, _ = env.reset(seed=0)  # what the loop carries from one step to the next
run.vars.episode = []

for _ in run.steps(8_000):  # in all, over every start
    obs = torch.as_tensor(run.vars.obs)
    with torch.no_grad():
        action = torch.distributions.Categorical(logits=policy(obs)).sample()
    run.vars.obs, reward, terminated, truncated, _ = env.step(action.item())
    run.vars.episode.append((obs, action, float(reward)))

    if terminated or truncated:
        seen, actions, rewards = zip(*run.vars.episode, strict=True)
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        chosen = torch.distributions.Categorical(logits=policy(torch.stack(seen)))
        loss = -(chosen.log_prob(torch.stack(actions)) * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record(episodes=1, episode_return=sum(rewards), loss=loss.item())
        run.vars.obs, _ = env.reset()
        run.vars.episode = []

weights = b"".join(p.detach().numpy().tobytes() for p in policy.parameters())
print(f"{run.episodes} episodes, weights {hashlib.sha256(weights).hexdigest()[:16]}")

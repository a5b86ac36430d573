"""REINFORCE on CartPole with a policy that FSDP2 shards over two processes. Kill it at any moment and start it again.

torchrun --standalone --nproc-per-node 2 train_fsdp.py
"""

import hashlib

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import unbroken
import unbroken.distributed

dist.init_process_group("gloo")
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
fully_shard(policy, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
torch.manual_seed(1 + dist.get_rank())  # from here on each rank draws for itself
env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")

# No component is the same on two ranks: each has its shards.
run = unbroken.Run("runs", job="fsdp", every=20, world=unbroken.distributed.world(replicated=()))
run.track(policy=policy, optimizer=optimizer, env=env)
run.vars.obs, _ = env.reset(seed=100 * dist.get_rank())

for _ in run.steps(200):  # in all, over every start
    seen, actions, rewards = [], [], []
    for _ in range(16):  # the same number on every rank: each forward pass is one of all
        seen.append(torch.as_tensor(run.vars.obs))
        with torch.no_grad():
            actions.append(torch.distributions.Categorical(logits=policy(seen[-1])).sample())
        run.vars.obs, reward, _, _, _ = env.step(actions[-1].numpy())
        rewards.append(reward)
    returns = torch.tensor(np.array(rewards), dtype=torch.float32).flip(0).cumsum(0).flip(0)
    chosen = torch.distributions.Categorical(logits=policy(torch.stack(seen)))
    loss = -(chosen.log_prob(torch.stack(actions)) * (returns - returns.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

weights = b"".join(p.full_tensor().detach().numpy().tobytes() for p in policy.parameters())
if dist.get_rank() == 0:
    print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}")
dist.destroy_process_group()

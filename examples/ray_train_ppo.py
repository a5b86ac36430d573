"""PPO on CartPole with two workers of Ray Train, that no kill can set back.

Start it, kill a worker, the driver or the whole tree, start it again with the same command: it ends byte for
byte as if nothing had happened. Every worker has environments and generators of its own; the policy is
data-parallel.
"""

import argparse
import os
from pathlib import Path

import gymnasium as gym
import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

import unbroken.ray_train

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--save-path", default="runs/ray_train_ppo")
parser.add_argument("--save-every", type=int, default=5, help="iterations between two saves")
parser.add_argument("--seed", type=int, default=7)

ENVS, HORIZON, GAMMA, LAMBDA, CLIP = 4, 64, 0.99, 0.95, 0.2


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


def train(config):
    rank = ray.train.get_context().get_world_rank()
    seed = config["seed"] + 1000 * rank
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = gym.make_vec("CartPole-v1", ENVS, vectorization_mode="sync")
    model = ray.train.torch.prepare_model(ActorCritic())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    ckpt = unbroken.ray_train.start(
        config["root"],
        every=config["save_every"],
        model=model,
        optimizer=optimizer,
        env=env,
    )
    ckpt.vars.obs, _ = env.reset(seed=seed)
    ckpt.vars.alive = torch.zeros(ENVS)
    ckpt.vars.length = 0.0

    for iteration in ckpt.steps(config["iterations"]):
        rollout = collect(model, env, ckpt)
        losses = [update(model, optimizer, rollout, chosen) for _ in range(4) for chosen in minibatches()]
        ckpt.report(
            {"episode_length": ckpt.vars.length, "loss": sum(losses) / len(losses)},
            epoch=iteration,
            env_seed=seed,
            rollouts=(iteration + 1) * ENVS,
        )


def collect(model, env, ckpt):
    """Play HORIZON steps; return what was seen and done, and the advantages and returns of it."""
    steps = []
    with torch.no_grad():
        for _ in range(HORIZON):
            obs = torch.as_tensor(ckpt.vars.obs)
            policy, value = model(obs)
            action = policy.sample()
            ckpt.vars.obs, reward, terminated, truncated, _ = env.step(action.numpy())
            done = torch.as_tensor(terminated | truncated)
            steps.append((obs, action, policy.log_prob(action), value, torch.as_tensor(reward).float(), done))
            ckpt.vars.alive += 1
            for length in ckpt.vars.alive[done].tolist():
                ckpt.vars.length += 0.05 * (length - ckpt.vars.length)
                ckpt.record(episodes=1)
            ckpt.vars.alive[done] = 0
        following = model(torch.as_tensor(ckpt.vars.obs))[1]
    obs, action, log_prob, value, reward, done = map(torch.stack, zip(*steps, strict=True))
    advantage, last = torch.zeros_like(value), torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        alive = 1 - done[t].float()
        delta = reward[t] + GAMMA * following * alive - value[t]
        last = delta + GAMMA * LAMBDA * alive * last
        advantage[t], following = last, value[t]
    return [part.flatten(0, 1) for part in (obs, action, log_prob, advantage, advantage + value)]


def minibatches():
    return torch.randperm(HORIZON * ENVS).split(64)


def update(model, optimizer, rollout, chosen):
    obs, action, old, advantage, target = (part[chosen] for part in rollout)
    policy, value = model(obs)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (policy.log_prob(action) - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    loss = 0.5 * (value - target).square().mean() - gain - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.item()


def main():
    args = parser.parse_args()
    # Ray takes a result every so many seconds, 2 by itself; a worker that reports often waits for it.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    storage = Path(os.environ.get("UNBROKEN_ROOT") or args.save_path).absolute() / "ray"
    ray.init(num_cpus=args.workers, include_dashboard=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={
            "root": os.path.abspath(args.save_path),  # each worker runs in a directory of its own
            "seed": args.seed,
            "iterations": args.iterations,
            "save_every": args.save_every,
        },
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers),
        run_config=ray.train.RunConfig(
            name="ppo",  # the same at every start: by it Ray finds its own record again
            storage_path=str(storage),
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    print(f"episode length {result.metrics['episode_length']:.0f}, last checkpoint: {result.checkpoint.path}")


if __name__ == "__main__":
    main()

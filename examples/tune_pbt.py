"""Population based training of REINFORCE on CartPole that no kill can set back: Ray Tune with pointers.

Start it, kill it (or its whole tree), start it again with the same command: every trial goes on from its
newest checkpoint. A trial that takes over another one's weights becomes a clone of it, with the learning rate
that the scheduler has chosen and with randomness of its own.
"""

import argparse
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import ray
import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from torch import nn

import unbroken.tune

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=60)
parser.add_argument("--trials", type=int, default=4)
parser.add_argument("--save-path", default="runs/tune_pbt")
parser.add_argument("--save-every", type=int, default=5, help="episodes between two saves")


def train(config):
    torch.manual_seed(config["seed"])
    torch.set_num_threads(1)
    env = gym.make("CartPole-v1")
    env.reset(seed=config["seed"])
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])

    run = unbroken.tune.start(
        config["root"],
        config=config,
        every=config["save_every"],
        keep_last=2,
        policy=net,
        optimizer=optimizer,
        env=env,
    )
    run.vars.average = 0.0

    for _ in run.steps(config["episodes"]):
        obs, _ = env.reset()
        log_probs, rewards, done = [], [], False
        while not done:
            policy = torch.distributions.Categorical(logits=net(torch.as_tensor(obs)))
            action = policy.sample()
            log_probs.append(policy.log_prob(action))
            obs, reward, terminated, truncated, _ = env.step(action.item())
            rewards.append(float(reward))
            done = terminated or truncated

        returns = torch.as_tensor(np.cumsum(rewards[::-1])[::-1].copy(), dtype=torch.float32)
        loss = -(torch.stack(log_probs) * (returns - returns.mean())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        run.record(episodes=1)
        run.vars.average = 0.9 * run.vars.average + 0.1 * sum(rewards)
        run.report({"reward": run.vars.average, "lr": optimizer.param_groups[0]["lr"]})


def main():
    args = parser.parse_args()
    root = Path(os.environ.get("UNBROKEN_ROOT") or args.save_path).absolute()
    storage, name = root / "tune", "pbt"
    ray.init(num_cpus=args.trials, include_dashboard=False)  # all of them at once: they learn from each other

    if tune.Tuner.can_restore(str(storage / name)):
        tuner = tune.Tuner.restore(str(storage / name), train, resume_unfinished=True, resume_errored=True)
    else:
        scheduler = PopulationBasedTraining(
            metric="reward",
            mode="max",
            time_attr="training_iteration",
            perturbation_interval=10,
            hyperparam_mutations={"lr": tune.loguniform(1e-3, 1e-1)},
        )
        tuner = tune.Tuner(
            train,
            param_space={
                "lr": tune.loguniform(1e-3, 1e-1),
                "seed": tune.randint(0, 2**31),
                "root": str(root / "checkpoints"),
                "episodes": args.episodes,
                "save_every": args.save_every,
            },
            tune_config=tune.TuneConfig(num_samples=args.trials, scheduler=scheduler),
            run_config=tune.RunConfig(name=name, storage_path=str(storage), verbose=1),
        )
    for result in tuner.fit():
        print(f"{result.path.rpartition('/')[2]}: reward {result.metrics['reward']:.1f}")


if __name__ == "__main__":
    main()

"""PPO on CartPole in one file, with Unbroken. ppo_plain.py is this file without it."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import unbroken

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--iterations", type=int, default=200)
parser.add_argument("--num-envs", type=int, default=4)
parser.add_argument("--num-steps", type=int, default=128, help="steps of each environment in one rollout")
parser.add_argument(
    "--asynchronous", action="store_true", help="run each environment in a process of its own"
)
parser.add_argument("--learning-rate", type=float, default=2.5e-4)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--gae-lambda", type=float, default=0.95)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--minibatches", type=int, default=4)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--entropy", type=float, default=0.01)
parser.add_argument("--value", type=float, default=0.5)
parser.add_argument("--max-grad-norm", type=float, default=0.5)
parser.add_argument("--save-path", default="runs/cleanrl_ppo")
parser.add_argument("--save-every", type=int, default=10, help="iterations between two saves")


def layer(inputs, outputs, gain):
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.critic = nn.Sequential(
            layer(observations, 64, 2**0.5), nn.Tanh(), layer(64, 64, 2**0.5), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(observations, 64, 2**0.5),
            nn.Tanh(),
            layer(64, 64, 2**0.5),
            nn.Tanh(),
            layer(64, actions, 0.01),
        )

    def forward(self, obs, action=None):
        policy = Categorical(logits=self.actor(obs))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.critic(obs).squeeze(-1)


if __name__ == "__main__":
    args = parser.parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    vector = gym.vector.AsyncVectorEnv if args.asynchronous else gym.vector.SyncVectorEnv
    envs = vector(
        [lambda: gym.make(args.env_id)] * args.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions = torch.zeros(shape, dtype=torch.int64)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))

    global_step = 0
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(args.num_envs)

    run = unbroken.Run(args.save_path, every=args.save_every)
    run.track(agent=agent, optimizer=optimizer, envs=envs)
    run.scratch(obs, actions, logprobs, rewards, dones, values)
    run.vars.carried = global_step, next_obs, next_done
    for iteration in run.steps(args.iterations):
        global_step, next_obs, next_done = run.vars.carried
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - iteration / args.iterations)

        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                actions[step], logprobs[step], _, values[step] = agent(next_obs)
            observed, reward, terminated, truncated, infos = envs.step(actions[step].numpy())
            rewards[step] = torch.as_tensor(reward)
            next_obs = torch.as_tensor(observed)
            next_done = torch.as_tensor(terminated | truncated).float()
            if "episode" in infos:
                returns = infos["episode"]["r"][infos["_episode"]]
                print(f"global_step={global_step}, episodic_return={returns.mean():.1f}")

        with torch.no_grad():
            next_value = agent(next_obs)[3]
            advantages, last = torch.zeros(shape), torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                final = t == args.num_steps - 1
                follows = 1.0 - (next_done if final else dones[t + 1])
                delta = (
                    rewards[t] + args.gamma * (next_value if final else values[t + 1]) * follows - values[t]
                )
                last = delta + args.gamma * args.gae_lambda * follows * last
                advantages[t] = last
            goals = advantages + values

        batch = [part.flatten(0, 1) for part in (obs, actions, logprobs, advantages, goals)]
        indices = np.arange(args.num_envs * args.num_steps)
        for _ in range(args.epochs):
            np.random.shuffle(indices)
            for rows in np.array_split(indices, args.minibatches):
                b_obs, b_actions, b_logprobs, b_advantages, b_goals = (part[rows] for part in batch)
                _, logprob, entropy, value = agent(b_obs, b_actions)
                ratio = (logprob - b_logprobs).exp()
                scaled = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                gain = torch.minimum(
                    scaled * ratio, scaled * ratio.clamp(1 - args.clip, 1 + args.clip)
                ).mean()
                value_loss = 0.5 * (value - b_goals).square().mean()
                loss = args.value * value_loss - gain - args.entropy * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        run.vars.carried = global_step, next_obs, next_done

    envs.close()

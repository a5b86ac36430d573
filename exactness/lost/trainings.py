"""The four trainings that lose a part: three of SB3 and a loop. Small, and long enough to learn something.

Each tells at every step what it did (what it observed, chose and was given) and what it had learned by then.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

import unbroken
from exactness.training import digest
from unbroken.sb3 import CheckpointCallback

ROOT, JOB = "runs", "job"
EPISODES = 5
"""Of the test at the end, each from a seed of its own."""


@dataclass
class Told:
    """What a training has told so far, in memory of the process: no checkpoint holds it."""

    acts: list[str] = field(default_factory=list[str])
    """A digest for each step since this process began: observations, actions and rewards."""
    learned: list[str] = field(default_factory=list[str])
    """A digest for each step: all weights."""
    weights: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """The weights as numbers, at the steps that were asked for and at the end."""
    score: float = 0.0
    """The mean return of the test."""


@dataclass(frozen=True)
class Training:
    """One of the trainings. `parts` says by which places of the state each row of the table is left cold."""

    name: str
    what: str
    steps: int
    """Calls in all."""
    at: int
    """Calls at the checkpoint that the run goes on from."""
    parts: dict[str, tuple[str, ...]]
    run: Callable[[Training, int, int, Told], None]
    """Train on to the end; the arguments are calls between saves, the call at which to be killed (0: none), and who is told."""


class Tells(BaseCallback):
    """Tells of each step, and dies when it is time."""

    def __init__(self, training: Training, ours: CheckpointCallback, kill: int, told: Told) -> None:
        super().__init__()
        self.kill, self._ours = kill, ours
        _TOLD[id(self)] = (training, told)

    def _on_step(self) -> bool:
        training, told = _TOLD[id(self)]
        inside = self.locals
        told.acts.append(digest([inside["new_obs"], inside["actions"], inside["rewards"]]))
        told.learned.append(digest(self.model.policy.state_dict()))
        if len(told.acts) == training.at:
            told.weights[training.at] = flat(self.model.policy)
        if self.kill and len(told.acts) == self.kill:
            session = self._ours._session
            assert session is not None and session._engine is not None
            session._engine.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return True


_TOLD: dict[int, tuple[Training, Told]] = {}


def flat(module: nn.Module) -> list[float]:
    """Return all weights as one list."""
    return torch.cat([weight.detach().reshape(-1).double() for weight in module.parameters()]).tolist()


def _sb3(build: Callable[[], Any], env: str) -> Callable[[Training, int, int, Told], None]:
    def run(training: Training, every: int, kill: int, told: Told) -> None:
        model = build()
        ours = CheckpointCallback(every, ROOT, JOB)
        model.learn(training.steps * model.n_envs, callback=[ours, Tells(training, ours, kill, told)])
        told.weights[training.steps] = flat(model.policy)
        told.score = score(env, lambda seen: model.predict(seen, deterministic=True)[0])

    return run


def score(env: str, choose: Callable[[Any], Any]) -> float:
    """Return the mean return of a policy over `EPISODES`."""
    world, total = gymnasium.make(env), 0.0
    for seed in range(EPISODES):
        seen, _ = world.reset(seed=1000 + seed)
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = world.step(choose(seen))
            total, over = total + float(reward), terminated or truncated
    world.close()  # type: ignore[no-untyped-call]
    return total / EPISODES


def _options() -> dict[str, Any]:
    return {"policy_kwargs": {"net_arch": [32, 32]}, "seed": 0, "device": "cpu"}


def _ppo() -> PPO:
    env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    return PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=4, learning_rate=1e-3, **_options())


def _dqn() -> DQN:
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    return DQN(
        "MlpPolicy", env, learning_rate=1e-3, learning_starts=200, buffer_size=20_000, batch_size=64, train_freq=4,
        gradient_steps=2, target_update_interval=70, exploration_fraction=0.3, **_options(),
    )  # fmt: skip


def _sac() -> SAC:
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=0)
    return SAC("MlpPolicy", env, learning_starts=100, buffer_size=20_000, batch_size=64, **_options())


class Order:
    """In which order the rows of a data set come: shuffled anew for each pass, `size` at a time."""

    def __init__(self, rows: int, size: int, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.rows, self.size = rows, size
        self.order, self.at = self.generator.permutation(rows), 0

    def next(self) -> Any:
        """Return the next numbers of rows."""
        if self.at + self.size > self.rows:
            self.order, self.at = self.generator.permutation(self.rows), 0
        self.at += self.size
        return self.order[self.at - self.size : self.at]


SEGMENT = 32


def _loop(training: Training, every: int, kill: int, told: Told) -> None:
    """Learn from one's own episodes by REINFORCE, and to foresee what comes next from rows that were collected before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generators are part of the run
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    first, _ = env.reset(seed=0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2 + 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.8)
    order = Order(512, SEGMENT, seed=5)
    rows = torch.from_numpy(np.random.default_rng(6).normal(size=(512, 4)).astype(np.float32))
    run = unbroken.Run(ROOT, job=JOB, every=every, quiet=True)
    run.track(policy=policy, optimizer=optimizer, scheduler=scheduler, env=env, order=order)
    run.vars.seen, run.vars.collected, run.vars.episodes = first, [], 0
    for step in run.steps(training.steps):
        if kill and step == kill:
            run.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        kept = run.vars
        now = torch.as_tensor(kept.seen, dtype=torch.float32)
        logits = policy(now)[:2]
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=logits).sample()  # type: ignore[no-untyped-call]
        seen, reward, terminated, truncated, _ = env.step(int(action))
        kept.collected.append((now, action, float(reward), bool(terminated or truncated)))
        if terminated or truncated:
            kept.episodes += 1
            seen, _ = env.reset()
        kept.seen = seen
        if len(kept.collected) == SEGMENT:
            _learn(policy, optimizer, kept.collected, rows[order.next()])
            scheduler.step()
            kept.collected = []
        told.acts.append(digest([seen, int(action), float(reward)]))
        told.learned.append(digest(policy.state_dict()))
        if step + 1 == training.at:
            told.weights[training.at] = flat(policy)
    told.weights[training.steps] = flat(policy)
    told.score = score("CartPole-v1", lambda seen: int(policy(torch.as_tensor(seen))[:2].argmax()))


def _learn(policy: nn.Module, optimizer: Any, collected: list[Any], rows: torch.Tensor) -> None:
    gains, gain = [], 0.0
    for _, _, reward, over in reversed(collected):
        gain = reward + 0.98 * gain * (not over)
        gains.append(gain)
    weights = torch.tensor(gains[::-1])
    weights = (weights - weights.mean()) / (weights.std() + 1e-6)
    outputs = policy(torch.stack([now for now, _, _, _ in collected]))[:, :2]
    chosen = torch.stack([action for _, action, _, _ in collected])
    chances = torch.distributions.Categorical(logits=outputs).log_prob(chosen)  # type: ignore[no-untyped-call]
    foreseen = policy(rows)[:, 2:]
    loss = -(weights * chances).mean() + 0.1 * (foreseen - rows.roll(1, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _below(module: str, *layers: int | str) -> tuple[str, ...]:
    """Return the places of the weights of some layers: an optimizer that comes back refers to them, one by one."""
    return tuple(
        f"{module}/_modules/{layer}/_parameters/{kind}" for layer in layers for kind in ("weight", "bias")
    )


WEIGHTS, TARGET, OPTIMIZER, SCHEDULER = "weights", "target", "optimizer", "scheduler"
STEP, BUFFER, GENERATORS, WORLD, COUNTERS, SAMPLER = (
    "step",
    "buffer",
    "generators",
    "world",
    "counters",
    "sampler",
)

TRAININGS = (
    Training(
        "dqn", "SB3 DQN, CartPole-v1", 600, 302,
        {
            WEIGHTS: _below("model/policy/_modules/q_net/_modules/q_net", 0, 2, 4), TARGET: ("model/policy/_modules/q_net_target",),
            OPTIMIZER: ("model/policy/optimizer",), STEP: ("model/num_timesteps",), BUFFER: ("model/replay_buffer",),
            GENERATORS: ("generators",), WORLD: ("model/env",), COUNTERS: ("model/_episode_num", "model/ep_info_buffer"),
        },
        _sb3(_dqn, "CartPole-v1"),
    ),
    Training(
        "sac", "SB3 SAC, Pendulum-v1", 300, 160,
        {
            WEIGHTS: (
                *_below("model/actor/_modules/latent_pi", 0, 2), *_below("model/actor", "mu", "log_std"),
                *_below("model/critic/_modules/qf0", 0, 2, 4), *_below("model/critic/_modules/qf1", 0, 2, 4),
            ), TARGET: ("model/critic_target",),
            OPTIMIZER: ("model/actor/optimizer", "model/critic/optimizer"), STEP: ("model/num_timesteps",),
            BUFFER: ("model/replay_buffer",), GENERATORS: ("generators",), WORLD: ("model/env",),
            COUNTERS: ("model/_episode_num", "model/ep_info_buffer"),
        },
        _sb3(_sac, "Pendulum-v1"),
    ),
    Training(
        "ppo", "SB3 PPO, CartPole-v1, 4 environments", 384, 200,
        {
            WEIGHTS: (
                *_below("model/policy/_modules/mlp_extractor/_modules/policy_net", 0, 2),
                *_below("model/policy/_modules/mlp_extractor/_modules/value_net", 0, 2),
                *_below("model/policy", "action_net", "value_net"),
            ), OPTIMIZER: ("model/policy/optimizer",), STEP: ("model/num_timesteps",),
            BUFFER: tuple(f"model/rollout_buffer/{name}" for name in ("observations", "actions", "rewards", "values", "log_probs")),
            GENERATORS: ("generators",), WORLD: ("model/env",),
            COUNTERS: ("model/_episode_num", "model/ep_info_buffer"),
        },
        _sb3(_ppo, "CartPole-v1"),
    ),
    Training(
        "loop", "a hand-written loop (REINFORCE), CartPole-v1", 400, 200,
        {
            WEIGHTS: _below("policy", 0, 2), OPTIMIZER: ("optimizer",), SCHEDULER: ("scheduler",), BUFFER: ("vars/collected",),
            GENERATORS: ("generators",), WORLD: ("env",), COUNTERS: ("vars/episodes",), SAMPLER: ("order",),
        },
        _loop,
    ),
)  # fmt: skip

"""The cells about hand-written loops: `unbroken.Run` with a small actor and critic, in vectors of Gymnasium.

What is in the loop is what a person has there: a policy, an optimizer, a scheduler, environments, the last
observation and the steps that were collected since the last update.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces, wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vectored
from torch import nn

import unbroken
from exactness import worlds
from exactness.building import atari, seed_process
from exactness.cell import Cell

SEGMENT = 16
"""Steps between two updates."""


def features(observations: Any, count: int) -> torch.Tensor:
    """Return what `count` environments observe as one row of numbers each, whatever their space."""
    if isinstance(observations, dict):
        parts = list(observations.values())
    else:
        parts = list(observations) if isinstance(observations, tuple) else [observations]
    flat = [np.asarray(part, np.float32).reshape(count, -1) for part in parts]
    rows = torch.from_numpy(np.concatenate(flat, axis=1))
    return rows / (1 + rows.abs())  # pixels and masses alike become small


class Loop:
    """One loop over a vector of environments, or over a single one."""

    def __init__(self, env: Any, *, iterations: int) -> None:
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002 - the global generators are part of the run
        torch.manual_seed(3)
        self.env = env
        self.count = getattr(env, "num_envs", 1)
        self.iterations = iterations
        self.space = getattr(env, "single_action_space", env.action_space)
        # A vector has a generator for the actions of all and one for those of each.
        env.action_space.seed(3)
        self.space.seed(3)
        first, _ = env.reset(seed=3)
        width = features(first, self.count).shape[1]
        outputs = (
            int(self.space.n) if isinstance(self.space, spaces.Discrete) else int(np.prod(self.space.shape))
        )
        self.policy = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, outputs + 1))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.first = first

    def track(self, run: unbroken.Run) -> None:
        run.track(
            policy=self.policy,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            env=self.env,
            space=self.space,
        )
        run.vars.observations = self.first
        run.vars.collected = []

    def steps(self, run: unbroken.Run) -> Iterator[int]:
        """Train; yield at the top of each iteration."""
        for step in run.steps(self.iterations):
            yield step
            self.iterate(run.vars, update=(step + 1) % SEGMENT == 0)

    def iterate(self, kept: Any, *, update: bool) -> None:
        rows = features(kept.observations, self.count)
        with torch.no_grad():
            outputs = self.policy(rows)[:, :-1]
        if isinstance(self.space, spaces.Discrete):
            chosen = torch.distributions.Categorical(logits=outputs).sample()  # type: ignore[no-untyped-call]
            actions = chosen.numpy()
        else:
            chosen = torch.distributions.Normal(outputs, 0.5).sample()  # type: ignore[no-untyped-call]
            actions = np.clip(
                chosen.numpy().reshape(self.count, *self.space.shape), self.space.low, self.space.high
            )
        single = not hasattr(self.env, "num_envs")
        observations, rewards, terminated, truncated, _ = self.env.step(actions[0] if single else actions)
        if single and (terminated or truncated):
            observations, _ = self.env.reset()
        kept.collected.append(
            (rows, chosen, torch.as_tensor(np.asarray(rewards, np.float32)).reshape(self.count))
        )
        kept.observations = observations
        if update:
            self.learn(kept.collected)
            kept.collected = []

    def learn(self, collected: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
        rows = torch.cat([rows for rows, _, _ in collected])
        chosen = torch.cat([chosen for _, chosen, _ in collected])
        rewards = torch.cat([rewards for _, _, rewards in collected])
        order = torch.randperm(len(rows))
        for part in order.chunk(2):
            outputs = self.policy(rows[part])
            advantages = rewards[part] - outputs[:, -1]
            if isinstance(self.space, spaces.Discrete):
                chances = torch.distributions.Categorical(logits=outputs[:, :-1]).log_prob(chosen[part])  # type: ignore[no-untyped-call]
            else:
                chances = torch.distributions.Normal(outputs[:, :-1], 0.5).log_prob(chosen[part]).sum(1)  # type: ignore[no-untyped-call]
            loss = (advantages.pow(2) - advantages.detach() * chances).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.scheduler.step()


def many(
    make: str | Callable[[], Any],
    count: int = 3,
    *,
    processes: bool = False,
    inside: Sequence[Callable[[Any], Any]] = (),
    over: Sequence[Callable[[Any], Any]] = (),
    **options: Any,
) -> Any:
    """Return a vector of Gymnasium. `inside` are wrappers of each environment, `over` those of the vector."""

    def one() -> Any:
        if processes:
            seed_process()
        env: Any = gymnasium.make(make) if isinstance(make, str) else make()
        for wrapper in inside:
            env = wrapper(env)
        return env

    kind: Any = partial(AsyncVectorEnv, context="fork") if processes else SyncVectorEnv
    env = kind([one] * count, **options)
    for wrapper in over:
        env = wrapper(env)
    return env


def loop(
    name: str, environment: str, around: str, env: Callable[[], Any], *, iterations: int = 96, **more: Any
) -> Cell:
    return Cell(
        group="hand-written loops", name=name, algorithm="actor and critic, `unbroken.Run`",
        environment=environment, around=around, build=lambda: Loop(env(), iterations=iterations),
        steps=iterations, cold=more.pop("cold", ("env",)), **more,
    )  # fmt: skip


def atari_in_c() -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(game="pong", num_envs=2, img_height=40, img_width=40, stack_num=1)


STATISTICS = (vectored.RecordEpisodeStatistics, vectored.NormalizeObservation, vectored.NormalizeReward)
CELLS = [
    loop("single", "CartPole-v1", "one environment", lambda: gymnasium.make("CartPole-v1")),
    loop("optimizer", "CartPole-v1", "SyncVectorEnv", lambda: many("CartPole-v1"), cold=("optimizer",)),
    loop("scheduler", "CartPole-v1", "SyncVectorEnv", lambda: many("CartPole-v1"), cold=("scheduler",)),
    loop("generators", "CartPole-v1", "SyncVectorEnv", lambda: many("CartPole-v1"), cold=("generators",)),
    *(
        loop(
            f"{kind}-{mode.name.lower().replace('_', '-')}", "CartPole-v1", f"{title}, autoreset {mode.value}",
            partial(many, "CartPole-v1", processes=processes, autoreset_mode=mode),
        )
        for kind, title, processes in (("sync", "SyncVectorEnv", False), ("async", "AsyncVectorEnv", True))
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
    ),
    loop(
        "vector-wrappers", "Pendulum-v1", "RecordEpisodeStatistics, NormalizeObservation, NormalizeReward over SyncVectorEnv",
        lambda: many("Pendulum-v1", inside=(partial(wrappers.TimeLimit, max_episode_steps=30),), over=STATISTICS),
    ),
    loop(
        "async-wrappers", "Pendulum-v1", "the same over AsyncVectorEnv",
        lambda: many(
            "Pendulum-v1", processes=True, inside=(partial(wrappers.TimeLimit, max_episode_steps=30),), over=STATISTICS
        ),
    ),
    loop("dictionary", "of a user's own", "Dict observations, SyncVectorEnv", lambda: many(worlds.Drift)),
    loop(
        "async-dictionary", "of a user's own", "Dict observations in shared memory, AsyncVectorEnv",
        lambda: many(worlds.Drift, processes=True),
    ),
    loop("tuple", "of a user's own", "Tuple observations, SyncVectorEnv", lambda: many(worlds.Pair)),
    loop(
        "async-tuple", "of a user's own", "Tuple observations, AsyncVectorEnv without shared memory",
        lambda: many(worlds.Pair, processes=True, shared_memory=False),
    ),
    loop("blackjack", "Blackjack-v1", "Tuple observations, SyncVectorEnv", lambda: many("Blackjack-v1")),
    loop("lunar", "LunarLander-v3", "SyncVectorEnv", lambda: many("LunarLander-v3"), iterations=160),
    loop(
        "async-lunar", "LunarLander-v3", "AsyncVectorEnv", lambda: many("LunarLander-v3", processes=True), iterations=160
    ),
    loop(
        "chain", "Hopper-v5",
        "TimeLimit, ClipAction, RecordEpisodeStatistics, NormalizeObservation, NormalizeReward, SyncVectorEnv",
        lambda: many(
            "Hopper-v5", 2,
            inside=(
                partial(wrappers.TimeLimit, max_episode_steps=21), wrappers.ClipAction,
                wrappers.RecordEpisodeStatistics, wrappers.NormalizeObservation, wrappers.NormalizeReward,
            ),
        ),
    ),
    loop("async-hopper", "Hopper-v5", "AsyncVectorEnv", lambda: many("Hopper-v5", 2, processes=True)),
    loop(
        "atari", "ALE/Pong-v5", "sticky actions, AtariPreprocessing, FrameStackObservation, SyncVectorEnv",
        lambda: many(
            atari("Pong"), 2,
            inside=(
                partial(wrappers.AtariPreprocessing, noop_max=10),
                partial(wrappers.FrameStackObservation, stack_size=2),
            ),
        ),
        iterations=64,
    ),
    loop(
        "atari-in-c", "AtariVectorEnv of ale-py", "its emulators in one C++ object",
        atari_in_c, iterations=48, claim="impossible", after=0,
        because="env_states not captured: env: AtariVectorEnv: its emulators are out of reach in a C++ object",
    ),
]  # fmt: skip

"""Scripts whose environments and statistics others have lost: kinds E and F of the catalogue."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

import unbroken

from .starts import Training


class Episodes(gym.Env[Any, Any]):
    """Serves the ids of its episodes in their order, each for some steps."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1000, (1,))

    def __init__(self, first: int) -> None:
        self.first = first
        self.ids = iter(range(first, first + 100))
        self.id, self.age = first, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.id, self.age = next(self.ids), 0
        return np.array([self.id], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.array([self.id], np.float32), float(action), self.age >= 2 + self.id % 3, False, {}


class Controlled(gym.Env[Any, Any]):
    """E11: the integrator of a controller lies beside the physics."""

    action_space = gym.spaces.Box(-1, 1, (1,))
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))

    def __init__(self) -> None:
        self.at = np.zeros(1)
        self.pid = {"integral": np.zeros(1), "before": np.zeros(1)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.at = self.np_random.normal(size=1)
        return self.at.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        error = np.asarray(action, float) - self.at
        self.pid["integral"] = self.pid["integral"] + error
        force = error + 0.1 * self.pid["integral"] + (error - self.pid["before"])
        self.pid["before"] = error
        self.at = self.at + 0.1 * force
        return self.at.astype(np.float32), -float(abs(error[0])), False, False, {}


class Walking(Training):
    """Goes through environments and keeps what it has seen."""

    steps = 30
    every = 10
    kills = (17,)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.env = self.build()
        for name in ("action_space", "observation_space", "single_action_space", "single_observation_space"):
            if hasattr(self.env, name):  # a vector draws a generator for each from the system's entropy
                getattr(self.env, name).seed(3)
        observation, _ = self.env.reset(seed=3)
        run.track(env=self.env)
        run.vars.seen = [np.asarray(observation).tolist()]

    def build(self) -> Any:
        raise NotImplementedError

    def step(self, step: int) -> None:
        result = self.env.step(self.env.action_space.sample())
        self.run.vars.seen = [
            *self.run.vars.seen,
            np.asarray(result[0]).tolist(),
            np.asarray(result[1]).tolist(),
        ]

    def chill(self) -> None:
        self.env.reset(seed=3)


class EpisodeIds(Walking):
    """E8: each environment of a vector serves the episode next in its own order."""

    def build(self) -> Any:
        return gym.vector.SyncVectorEnv([lambda: Episodes(0), lambda: Episodes(1000)])

    def chill(self) -> None:
        for env in self.env.envs:
            env.unwrapped.ids = iter(range(env.unwrapped.first, env.unwrapped.first + 100))


class Integrator(Walking):
    """E11."""

    def build(self) -> Any:
        return Controlled()

    def chill(self) -> None:
        self.env.pid["integral"] = np.zeros(1)


class Drawn(gym.Env[Any, Any]):
    """Draws what it shows from spaces that stand on its class, one of them in a container."""

    action_space = gym.spaces.Discrete(9)
    observation_space = gym.spaces.Box(-1, 1, (2,))
    goals: ClassVar[dict[str, Any]] = {"near": gym.spaces.Discrete(5), "far": gym.spaces.Discrete(50)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            for number, space in enumerate((self.action_space, self.observation_space, *self.goals.values())):
                space.seed(seed + number)
        self.goal, self.age = int(self.goals["far"].sample()), 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        reward = float(self.goal + self.action_space.sample() + self.goals["near"].sample())
        return self.observation_space.sample(), reward, self.age == 7, False, {}


class OnTheClass(Walking):
    """Spaces of the class, and so one for all of its environments: two of them take turns."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.other = Drawn()
        self.other.reset()
        run.track(other=self.other)

    def build(self) -> Any:
        return Drawn()

    def step(self, step: int) -> None:
        super().step(step)
        self.run.vars.seen = [*self.run.vars.seen, self.other.step(0)[1]]

    def chill(self) -> None:
        Drawn.action_space.seed(99)


class DrawnInAWorker(Drawn):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            random.seed(seed)  # Python seeds it from the system's entropy in every process that is forked
        return super().reset(seed=seed, options=options)


class OnTheClassInWorkers(Walking):
    """The same in processes of Gymnasium's, in each of which the class has spaces of its own."""

    def build(self) -> Any:
        return gym.vector.AsyncVectorEnv([DrawnInAWorker, DrawnInAWorker])


class Limited(Walking):
    """E5: the episode is cut off at the same step, and statistics of wrappers go on."""

    def build(self) -> Any:
        inner = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1", max_episode_steps=8))
        wrapped: Any = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(inner))
        return gym.wrappers.Autoreset(wrapped)

    def chill(self) -> None:
        layer: Any = self.env
        while not isinstance(layer, gym.wrappers.TimeLimit):
            layer = layer.env
        vars(layer)["_elapsed_steps"] = 0


class Counted(Training):
    """F4: a running mean with the number of samples that it is the mean of."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.statistics = {"mean": np.zeros(2), "count": np.zeros(1)}
        run.track(statistics=self.statistics)

    def step(self, step: int) -> None:
        batch = np.random.normal(step, 1, size=(10, 2))  # noqa: NPY002
        self.statistics["count"] += len(batch)
        self.statistics["mean"] += (
            (batch.mean(0) - self.statistics["mean"]) * len(batch) / self.statistics["count"]
        )

    def chill(self) -> None:
        self.statistics["count"][:] = 0

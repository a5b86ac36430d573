"""Environments as people write them, without a spec: each keeps something in another ordinary way."""

from __future__ import annotations

import datetime
import random
from collections import deque
from collections.abc import Generator
from time import time
from typing import Any, ClassVar

import counting  # type: ignore[import-not-found]
import gymnasium as gym
import numpy as np
from gymnasium import spaces

Answer = tuple[Any, float, bool, bool, dict[str, Any]]
LENGTH = 12


class Plain(gym.Env[Any, Any]):
    """Draws from its own generator; an episode has a fixed length."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.x, self.age = 0.0, 0
        self.start()

    def start(self) -> None:
        """Make what outlives an episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.x, self.age = float(self.np_random.normal()), 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.x, self.age, self.remembered()], np.float32)

    def remembered(self) -> float:
        return 0.0

    def move(self, action: Any) -> None:
        """Change what outlives an episode."""

    def step(self, action: Any) -> Answer:
        self.age += 1
        self.x += float(action) - 0.5 + float(self.np_random.normal())
        self.move(action)
        return self.observe(), self.x, False, self.age == LENGTH, {}


class Lists(Plain):
    def start(self) -> None:
        self.visited: list[float] = []

    def move(self, action: Any) -> None:
        self.visited.append(self.x)

    def remembered(self) -> float:
        return sum(self.visited) + len(self.visited)


class Dicts(Plain):
    def start(self) -> None:
        self.visits: dict[tuple[int, int], int] = {}

    def move(self, action: Any) -> None:
        place = (round(self.x) % 5, int(action))
        self.visits[place] = self.visits.get(place, 0) + 1

    def remembered(self) -> float:
        return float(max(self.visits.values(), default=0) * 100 + len(self.visits))


class Arrays(Plain):
    def start(self) -> None:
        self.heat = np.zeros(5)
        self.row = self.heat[1:3]

    def move(self, action: Any) -> None:
        self.heat[round(self.x) % 5] += 1
        self.row += 0.5

    def remembered(self) -> float:
        return float(self.heat @ np.arange(1.0, 6.0))


class Scalars(Plain):
    def start(self) -> None:
        self.best, self.count = np.float64(0), np.int32(0)

    def move(self, action: Any) -> None:
        self.best, self.count = max(self.best, np.float64(self.x)), np.int32(self.count + 1)

    def remembered(self) -> float:
        return float(self.best + self.count)


class Deques(Plain):
    def start(self) -> None:
        self.last: deque[float] = deque(maxlen=20)

    def move(self, action: Any) -> None:
        self.last.append(self.x)

    def remembered(self) -> float:
        return float(np.mean(self.last)) if self.last else 0.0


class Robot:
    def __init__(self) -> None:
        self.miles = 0
        self.log = [0.0]


class Objects(Plain):
    def start(self) -> None:
        self.robot = Robot()

    def move(self, action: Any) -> None:
        self.robot.miles += int(action) + 1
        self.robot.log.append(self.x)

    def remembered(self) -> float:
        return self.robot.miles + self.robot.log[-1]


class OwnGenerator(Plain):
    def start(self) -> None:
        self.generator = np.random.default_rng(3)

    def remembered(self) -> float:
        return float(self.generator.normal())


class UnseededGenerator(Plain):
    def start(self) -> None:
        self.generator = np.random.default_rng()
        self.python = random.Random()

    def remembered(self) -> float:
        return float(self.generator.normal()) + self.python.random()


class LegacyGenerator(Plain):
    def start(self) -> None:
        self.generator = np.random.RandomState(3)

    def remembered(self) -> float:
        return float(self.generator.normal())


class GlobalGenerators(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.x = random.random()
        return self.observe(), {}

    def remembered(self) -> float:
        return float(np.random.normal())  # noqa: NPY002 - people do


class Noisy(gym.ObservationWrapper[Any, Any, Any]):
    """A wrapper of the user's own, with something that outlives an episode."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seen = [0.0]

    def observation(self, observation: Any) -> Any:
        self.seen.append(float(observation[0]))
        return observation + np.float32(np.mean(self.seen))


def wrapped() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Noisy(Lists()), 9)


class DrawsFromItsClass(Plain):
    """Its spaces stand in the body of the class, as most people write them."""

    action_space: Any = spaces.Discrete(2)
    observation_space: Any = spaces.Box(-1e9, 1e9, (3,), np.float32)
    goals: ClassVar[dict[str, Any]] = {"near": spaces.Discrete(5), "far": spaces.Discrete(50)}

    def __init__(self) -> None:
        self.x, self.age = 0.0, 0

    def remembered(self) -> float:
        return float(self.action_space.sample() + self.goals["far"].sample())


EXACT = (
    Plain, Lists, Dicts, Arrays, Scalars, Deques, Objects, OwnGenerator, UnseededGenerator, LegacyGenerator,
    GlobalGenerators, DrawsFromItsClass, wrapped,
)  # fmt: skip
"""Makers of environments whose attributes, with the generators of the process, are all there is."""


_moves = 0
_history: list[float] = []
_choices: Any = spaces.Discrete(2)


class OnTheClass(Plain):
    """Rewards that begin to differ long after any trial."""

    total = 0

    def move(self, action: Any) -> None:
        OnTheClass.total += 1

    def remembered(self) -> float:
        return float(self.total > 100_000)


class OnTheModule(Plain):
    def move(self, action: Any) -> None:
        global _moves
        _moves += 1

    def remembered(self) -> float:
        return float(_moves > 100_000)


class InAList(Plain):
    def move(self, action: Any) -> None:
        _history.append(self.x)


class SpaceOnTheModule(Plain):
    """Draws nothing itself; what the training draws from it does not come back."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (3,), np.float32)
        self.x, self.age = 0.0, 0

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        return _choices


class InAnotherModule(Plain):
    def move(self, action: Any) -> None:
        counting.count()


class InItsRobotsClass(Plain):
    """The counter stands in the class of an object that the environment holds."""

    class Arm:
        turns = 0

        def turn(self) -> None:
            type(self).turns += 1

    def start(self) -> None:
        self.arm = self.Arm()

    def move(self, action: Any) -> None:
        self.arm.turn()


def in_a_closure() -> Plain:
    count = 0

    class InAClosure(Plain):
        def move(self, action: Any) -> None:
            nonlocal count
            count += 1

    return InAClosure()


class ReadsTheClock(Plain):
    def remembered(self) -> float:
        return time() % 1000


class ReadsTheDate(Plain):
    def remembered(self) -> float:
        return float(datetime.datetime.now().day)  # noqa: DTZ005 - people do


class WritesAFile(Plain):
    path = "/tmp/unbroken-must-not-be-written"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        with open(self.path, "a") as file:
            file.write("reset\n")
        return super().reset(seed=seed)


class Raises(Plain):
    def move(self, action: Any) -> None:
        raise RuntimeError("no physics today")


class NeverAnswers(Plain):
    def move(self, action: Any) -> None:
        while True:
            pass


class Hidden(Plain):
    """Its physics lives in an object without attributes, like one of a C library."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        gym.Env.reset(self, seed=seed)
        self.world = self.physics(float(self.np_random.normal()))
        next(self.world)
        self.age = 0
        return np.array([self.world.send(0.0), 0, self.remembered()], np.float32), {}

    @staticmethod
    def physics(x: float) -> Generator[float, float, None]:
        while True:
            x += yield x

    def step(self, action: Any) -> Answer:
        self.age += 1
        x = self.world.send(float(action) - 0.5 + float(self.np_random.normal()))
        self.move(action)
        observation = np.array([x, self.age, self.remembered()], np.float32)
        return observation, float(x), False, self.age == LENGTH, {}


class HiddenWithMemory(Hidden):
    """Beside its physics it holds values that outlive an episode."""

    def start(self) -> None:
        self.visits: dict[tuple[int, int], int] = {}
        self.best = np.float32(0)
        self.heat = np.zeros(4)
        self.last: deque[int] = deque(maxlen=20)
        self.generator = np.random.default_rng(5)

    def move(self, action: Any) -> None:
        place = (self.age % 3, int(action))
        self.visits[place] = self.visits.get(place, 0) + 1
        self.best = np.float32(self.best + 0.25)
        self.heat[self.age % 4] += 1
        self.last.append(int(action))

    def remembered(self) -> float:
        return float(
            sum(self.visits.values()) + self.best + self.heat.sum() + sum(self.last) + self.generator.normal()
        )


class HiddenWithRobot(Hidden):
    """Beside its physics it holds an object that outlives an episode, and shows it late."""

    def start(self) -> None:
        self.robot = Robot()

    def move(self, action: Any) -> None:
        self.robot.miles += 1

    def remembered(self) -> float:
        return float(self.robot.miles > 100_000)

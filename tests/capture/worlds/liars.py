"""Small environments, each with its state in another place."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Generator, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


class Honest(gym.Env[Any, Any]):
    """Everything in attributes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10, 10, (1,))
        self.action_space = spaces.Discrete(2)
        self.x = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.x = float(self.np_random.normal())
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.x], np.float32)

    def move(self, action: Any) -> None:
        self.x += float(action) - 0.5 + float(self.np_random.normal())

    def step(self, action: Any) -> Answer:
        self.move(action)
        return self.observe(), self.x, False, False, {}


class Rebuilt(Honest, EzPickle):
    """A pickle of it succeeds and gives a fresh one."""

    def __init__(self) -> None:
        Honest.__init__(self)
        EzPickle.__init__(self)


class OnTheProcess(Honest):
    """Draws from the generators of the process, which a checkpoint holds."""

    def move(self, action: Any) -> None:
        self.x += float(np.random.normal()) + random.random()  # noqa: NPY002


_module_generator = np.random.default_rng(0)


class OnTheModule(Honest):
    """Draws from a generator of its module, which belongs to nobody."""

    def move(self, action: Any) -> None:
        self.x += float(_module_generator.normal())


class CountsOnTheClass(Honest):
    """Counts where no checkpoint looks; the count shows only after 100,000 steps."""

    total = 0

    def move(self, action: Any) -> None:
        super().move(action)
        CountsOnTheClass.total += 1
        self.x += float(self.total > 100_000)


_counted = [0]


class CountsOnTheModule(Honest):
    def move(self, action: Any) -> None:
        super().move(action)
        _counted[0] += 1
        self.x += float(_counted[0] > 100_000)


class Clocked(Honest):
    def observe(self) -> Any:
        return np.array([time.time() % 1000], np.float32)


class Hidden(Honest):
    """Its physics lives in an object without attributes, like one of a C library."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        gym.Env.reset(self, seed=seed)
        self.place(float(self.np_random.normal()))
        return np.array([self.position()], np.float32), {}

    def place(self, x: float) -> None:
        def physics() -> Generator[float, float, None]:
            position = x
            while True:
                position += yield position

        self.world = physics()
        next(self.world)

    def position(self) -> float:
        return self.world.send(0.0)

    def step(self, action: Any) -> Answer:
        x = self.world.send(float(action) - 0.5)
        return np.array([x], np.float32), x, False, False, {}


class CarriesOver(Honest):
    """Carries something out of reach from one episode to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.ages = self.grow()

    @staticmethod
    def grow() -> Iterator[int]:
        age = 0
        while True:
            age += 1
            yield age

    def move(self, action: Any) -> None:
        self.x += next(self.ages)


_memory = sqlite3.connect(":memory:")
_memory.execute("CREATE TABLE saved (x REAL)")


class KeepsAHandle(Honest):
    """What it holds is a number under which the memory of this process has the rest."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        found = super().reset(seed=seed)
        self.handle = _memory.execute("INSERT INTO saved VALUES (?)", (self.x,)).lastrowid
        return found

    def move(self, action: Any) -> None:
        (start,) = _memory.execute("SELECT x FROM saved WHERE rowid = ?", (self.handle,)).fetchone()
        super().move(action)
        self.x -= start / 8


class DropsItsPhysics(Honest):
    """Its pickle, and a copy of it, succeed and have lost where it is."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "x": 0.0}


class Engine:
    """Its pickle succeeds and has lost its bodies, but for the one it began with."""

    def __init__(self) -> None:
        self.bodies = [0.0]

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class DropsItsEngine(Honest):
    """Holds an object whose pickle drops what matters."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.engine.bodies = [0.0]
        return super().reset(seed=seed)

    def move(self, action: Any) -> None:
        super().move(action)
        self.engine.bodies.append(self.x)
        self.x += sum(self.engine.bodies) / 100


class Raises(Honest):
    def step(self, action: Any) -> Answer:
        raise RuntimeError("no physics today")


class NeverAnswers(Honest):
    def step(self, action: Any) -> Answer:
        while True:
            pass


class Crashes(Honest):
    def step(self, action: Any) -> Answer:
        os._exit(3)


class LeavesAChild(Honest):
    """Starts a process that lives on, with everything that this one holds open."""

    def __init__(self) -> None:
        super().__init__()
        if os.fork() == 0:
            signal.pause()


class Dreaming(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a state out of reach."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.dream = CarriesOver.grow()

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, float(next(self.dream)), *rest


for _world in (
    Honest, Rebuilt, OnTheProcess, OnTheModule, CountsOnTheClass, CountsOnTheModule, Clocked, Hidden,
    CarriesOver, KeepsAHandle, DropsItsPhysics, DropsItsEngine, Raises, NeverAnswers, Crashes,
    LeavesAChild,
):  # fmt: skip
    gym.register(f"{_world.__name__}-v0", entry_point=f"liars:{_world.__name__}")

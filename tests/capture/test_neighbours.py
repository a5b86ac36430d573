from __future__ import annotations

import argparse
import array
import contextvars
import ctypes
import functools
import itertools
import os
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from unbroken.capture.environments import chain
from unbroken.capture.neighbours import LARGEST, Neighbours, is_own
from unbroken.capture.trial import policy


class Arena:
    space: Any = spaces.Discrete(5)


class World(gym.Env[Any, Any]):
    limit = 10
    weights = np.ones(3)
    table = {"a": [1]}
    space: Any = spaces.Discrete(5)

    def __init__(self) -> None:
        self.here = [0]
        self.arena = Arena()

    def step(self, action: Any) -> Any:
        return helper(self), limits, the_world, rng, picture, sum(weight for weight in weights)

    @property
    def height(self) -> float:
        return heights[0]

    @staticmethod
    def width() -> float:
        return widths[0]


def helper(world: World, seen: list[int] = []) -> int:  # noqa: B006 - as people write it
    return len(deeper) + len(seen)


limits, weights, heights, widths, deeper, unnamed = {"x": 1}, [1.0], [1.0], [1.0], [0], [0]
picture = np.zeros(LARGEST // 8 + 1)
rng = random._inst
the_world = World()
HERE = __name__


def put(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(f"{HERE}.{name}", value)


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("World.limit", put("World.limit", 11)),
        ("World.born_later", lambda patch: patch.setattr(World, "born_later", 1, raising=False)),
        ("World.weights", lambda patch: World.weights.__setitem__(1, 2.0)),
        ("World.table", lambda patch: patch.setitem(World.table, "b", [])),
        ("Arena.space", lambda patch: Arena.space.sample()),
        ("limits", lambda patch: patch.setitem(limits, "x", 2)),
        ("weights", put("weights", [2.0])),
        ("heights", put("heights", [2.0])),
        ("widths", put("widths", [2.0])),
        ("deeper", put("deeper", [0, 1])),
        ("helper.<default 0>", lambda patch: (helper.__defaults__ or ([],))[0].append(1)),
    ],
)
def test_what_its_code_names_is_watched(
    name: str, move: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Neighbours(chain(World()), policy())
    assert watch.moved() == []
    move(monkeypatch)
    assert watch.moved() == [f"{HERE}.{name}"]


def test_what_is_restored_or_means_nothing_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Neighbours(chain(the_world), policy())
    the_world.here.append(1)
    monkeypatch.setattr(the_world, "here", [5])
    random.random()
    World.space.sample()  # which comes back with the environments of the class
    unnamed[0] += 1
    picture[0] += 1
    monkeypatch.setattr(gym.Env, "metadata", {"render_modes": ["none"]})
    assert watch.moved() == []


def numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        return function(*arguments)

    return around


held, cached, partial_of, decorated, awake = ([0] for _ in range(5))
ids = itertools.count()
turns = itertools.cycle([1, 2])
upcoming = iter([1, 2, 3])
feed = numbers()
picture_of = torch.zeros(3)
network = torch.nn.Linear(2, 2)
dice = torch.Generator()
notes = types.SimpleNamespace(n=0)
arguments = argparse.Namespace(n=0)
samples = array.array("d", [0.0])
memory = (ctypes.c_double * 2)()
current: contextvars.ContextVar[int] = contextvars.ContextVar("current", default=0)
made_at_run_time = 0


def inner() -> Any:
    return partial_of


class Odd(gym.Env[Any, Any]):
    """Names one of every kind, also behind decorators."""

    lot: Any = itertools.count()
    bound = functools.partial(inner)

    def step(self, action: Any) -> Any:
        kinds = ids, turns, upcoming, feed, picture_of, network, dice, notes, arguments, samples, memory
        return kinds, current.get(), os.environ.get("LEVEL")

    @functools.cached_property
    def kept(self) -> Any:
        return held

    @functools.lru_cache  # noqa: B019 - as people write it
    def level(self) -> Any:
        return cached

    @through
    def wrapped(self) -> Any:
        return decorated

    @torch.no_grad()
    def quiet(self) -> Any:
        return awake


class Reflects(gym.Env[Any, Any]):
    def step(self, action: Any) -> Any:
        globals()["made_at_run_time"] += 1


def learn(_: Any) -> None:
    with torch.no_grad():
        network.weight += 1


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("Odd.lot", lambda _: next(Odd.lot)),
        ("ids", lambda _: next(ids)),
        ("turns", lambda _: next(turns)),
        ("upcoming", lambda _: next(upcoming)),
        ("feed", lambda _: next(feed)),
        ("picture_of", lambda _: picture_of.add_(1)),
        ("network", learn),
        ("dice", lambda _: torch.rand(1, generator=dice)),
        ("notes", lambda patch: patch.setattr(notes, "n", 1)),
        ("arguments", lambda patch: patch.setattr(arguments, "n", 1)),
        ("samples", lambda _: samples.append(1.0)),
        ("memory", lambda _: memory.__setitem__(1, memory[1] + 1)),
        ("current", lambda _: current.set(current.get() + 1)),
        ("held", lambda _: held.append(1)),
        ("cached", lambda _: cached.append(1)),
        ("partial_of", lambda _: partial_of.append(1)),
        ("decorated", lambda _: decorated.append(1)),
        ("awake", lambda _: awake.append(1)),
    ],
)
def test_every_kind_of_state_that_its_code_names_is_watched(
    name: str, move: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Neighbours(chain(Odd()), policy())
    assert watch.moved() == []
    move(monkeypatch)
    assert watch.moved() == [f"{HERE}.{name}"]


def test_variables_of_the_process_are_watched_where_code_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named, unconcerned = Neighbours(chain(Odd()), policy()), Neighbours(chain(World()), policy())
    monkeypatch.setenv("LEVEL", "2")
    assert named.moved() == ["os.environ"]
    assert unconcerned.moved() == []


def test_globals_that_code_reaches_as_a_table_are_all_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Neighbours(chain(Reflects()), policy())
    monkeypatch.setattr(f"{HERE}.made_at_run_time", 7)
    assert watch.moved() == [f"{HERE}.made_at_run_time"]


def test_what_a_function_that_the_environment_holds_has_itself_comes_back_with_it() -> None:
    calls = 0

    def reward(_: Any) -> float:
        nonlocal calls
        calls += 1
        vars(reward)["calls"] = calls
        return 0.0

    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), reward)
    watch = Neighbours(chain(env), policy())
    reward(1.0)
    assert watch.moved() == []


def test_a_function_that_a_librarys_wrapper_calls_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: float(limits["x"]))
    watch = Neighbours(chain(env), policy())
    monkeypatch.setitem(limits, "x", 5)
    assert watch.moved() == [f"{HERE}.limits"]


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("__main__", True),
        ("my_package.worlds", True),
        ("random", False),
        ("builtins", False),
        (None, False),
        ("gymnasium.envs.classic_control", False),
        ("numpy", False),
    ],
)
def test_libraries_are_left_out(module: str | None, own: bool) -> None:
    assert is_own(module) is own

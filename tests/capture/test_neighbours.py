from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from unbroken.capture.environments import chain
from unbroken.capture.neighbours import LARGEST, Neighbours, is_own
from unbroken.capture.trial import policy


class World(gym.Env[Any, Any]):
    limit = 10
    weights = np.ones(3)
    table = {"a": [1]}
    space: Any = spaces.Discrete(5)

    def __init__(self) -> None:
        self.here = [0]

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
        ("World.space", lambda patch: World.space.sample()),
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
    unnamed[0] += 1
    picture[0] += 1
    monkeypatch.setattr(gym.Env, "metadata", {"render_modes": ["none"]})
    assert watch.moved() == []


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

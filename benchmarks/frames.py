"""Real frames of Atari games, as a replay buffer holds them: 84 x 84, grey, every fourth frame.

`python -m benchmarks.frames FILE COUNT` records them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing
from numpy.typing import NDArray

GAMES = ("Pong", "Breakout", "SpaceInvaders", "Seaquest", "MsPacman", "Qbert", "BeamRider", "Enduro")
SIDE = 84
STACK = 4


def record(path: Path, count: int) -> None:
    """Play with random actions and write `count` frames, equally many of each game, one game after another."""
    gymnasium.register_envs(ale_py)
    frames = np.empty((count, SIDE, SIDE), np.uint8)
    bounds = np.linspace(0, count, len(GAMES) + 1).astype(int)
    for game, start, stop in zip(GAMES, bounds[:-1], bounds[1:], strict=True):
        _play(game, frames[start:stop])
    with path.open("wb") as file:
        np.save(file, frames)
        file.flush()
        os.fsync(file.fileno())  # else it would be written while something is measured


def _play(game: str, into: NDArray[np.uint8]) -> None:
    env = AtariPreprocessing(gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0))
    env.action_space.seed(0)
    into[0], _ = env.reset(seed=0)
    for index in range(1, len(into)):
        into[index], _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    env.close()  # type: ignore[no-untyped-call]


class Frames:
    """Endless stacks of recorded frames. From the second pass on the grey levels are others, so that no
    stack comes twice: a store that keeps equal bytes once must gain nothing by our repeating ourselves."""

    def __init__(self, path: Path) -> None:
        self._frames: NDArray[np.uint8] = np.load(
            path
        )  # not mapped: its pages would count as memory that a save takes
        self._next = 0

    def take(self) -> NDArray[np.uint8]:
        """Return the next stack of four consecutive frames."""
        turn, start = divmod(self._next, len(self._frames) - STACK + 1)
        self._next += 1
        return self._frames[start : start + STACK] ^ np.uint8(turn % 256)


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]))

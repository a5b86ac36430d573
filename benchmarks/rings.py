"""The buffers of the workloads, as a person writes them for a loop of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbroken import Ring

Arrays = dict[str, NDArray[Any]]


class ReplayRing:
    """Rows of several arrays, the oldest overwritten first. One line tells Unbroken that it is a ring."""

    __unbroken_ring__ = Ring(
        ("observations", "actions", "rewards", "dones"), position="position", full="full", adds="adds"
    )

    def __init__(
        self, rows: int, observation: tuple[int, ...], action: tuple[int, ...], kind: type[np.generic]
    ) -> None:
        # np.zeros leaves large memory untouched until it is written, as in a process that has just started.
        self.observations: NDArray[Any] = np.zeros((rows, *observation), kind)
        self.actions: NDArray[Any] = np.zeros((rows, *action), np.int64 if kind is np.uint8 else np.float32)
        self.rewards = np.zeros(rows, np.float32)
        self.dones = np.zeros(rows, np.float32)
        self.position = 0
        self.full = False
        self.adds = 0

    def __len__(self) -> int:
        return len(self.rewards) if self.full else self.position

    def add(self, observation: NDArray[Any], action: Any, reward: float, done: float) -> None:
        """Write one row."""
        self.observations[self.position] = observation
        self.actions[self.position] = action
        self.rewards[self.position] = reward
        self.dones[self.position] = done
        self.adds += 1
        self.position = (self.position + 1) % len(self.rewards)
        self.full = self.full or self.position == 0

    def arrays(self) -> Arrays:
        """Return the live arrays by name."""
        return {name: getattr(self, name) for name in type(self).__unbroken_ring__.arrays}

    def counters(self) -> dict[str, int]:
        """Return what else is needed to go on."""
        return {"position": self.position, "full": int(self.full), "adds": self.adds}

    def adopt(self, arrays: Arrays, counters: dict[str, int]) -> None:
        """Take over what was loaded, without a copy."""
        for name, array in arrays.items():
            setattr(self, name, array)
        self.position, self.full, self.adds = (
            counters["position"],
            bool(counters["full"]),
            counters["adds"],
        )

    def newest(self, count: int) -> list[NDArray[Any]]:
        """Return the rows that the last `count` adds wrote, as views: at most two pieces an array."""
        start = (self.position - count) % len(self.rewards)
        first = min(count, len(self.rewards) - start)
        pieces = [slice(start, start + first), slice(0, count - first)]
        return [
            array[piece] for array in self.arrays().values() for piece in pieces if piece.stop > piece.start
        ]

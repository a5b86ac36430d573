"""A state with a ring that grows, weights that all change, and small leaves: what a training looks like here."""

from __future__ import annotations

import numpy as np

from unbroken.state.nodes import Array, Dict
from unbroken.state.snapshot import Base, Component, Rows, Snapshot

from .states import array, noise

CHUNK = 4096


class Ring:
    """A ring of `capacity` chunks of noise. Each snapshot holds what was written since the one before."""

    def __init__(self, capacity: int, *, weights: int = 20_000) -> None:
        self.data = np.zeros(capacity * CHUNK, np.uint8)
        self.weights = weights
        self.step = 0
        self._position = 0
        self._base: Base | None = None
        self._written: set[int] = set()

    def train(self, chunks: int) -> None:
        """Write so many chunks; the oldest are overwritten when the ring is full."""
        self.step += 1
        capacity = len(self.data) // CHUNK
        for _ in range(chunks):
            at = self._position % capacity
            content = noise(CHUNK, self._position + 10**6)
            self.data[at * CHUNK : (at + 1) * CHUNK] = np.frombuffer(content, np.uint8)
            self._written.add(at)
            self._position += 1

    def whole(self) -> Snapshot:
        """Return the state with all of the ring, as a load returns it."""
        return self._snapshot(Rows(self.data.nbytes, CHUNK, ((0, self.data.copy()),)))

    def changed(self) -> Snapshot:
        """Return the state with what was written since the last call of `saved`."""
        if self._base is None:
            return self.whole()
        ranges = tuple(
            (at * CHUNK, self.data[at * CHUNK : (at + 1) * CHUNK].copy()) for at in sorted(self._written)
        )
        return self._snapshot(Rows(self.data.nbytes, CHUNK, ranges, self._base))

    def saved(self, snapshot: Snapshot) -> None:
        """Take note of a commit: the next snapshot builds on it."""
        self._base = snapshot.components["replay_buffer"].saved[0]
        self._written.clear()

    def _snapshot(self, rows: Rows) -> Snapshot:
        weights = array(noise(self.weights, self.step))
        small = [array(noise(300, 7)), array(noise(40, self.step)), array(noise(100, self.step // 10))]
        parts = (
            Component(
                name="policy_weights",
                roots={"model/policy": Array(d="|u1", s=weights.shape, b=0)},
                blobs=[weights],
            ),
            Component(
                name="replay_buffer",
                roots={"model/replay_buffer": Array(d="|u1", s=(rows.size,), b=0)},
                blobs=[rows],
            ),
            Component(
                name="counters",
                roots={
                    "model": Dict(
                        v={f"leaf{i}": Array(d="|u1", s=leaf.shape, b=i) for i, leaf in enumerate(small)}
                    )
                },
                blobs=list(small),
            ),
        )
        return Snapshot(components={part.name: part for part in parts})

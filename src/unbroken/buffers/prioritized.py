"""Prioritized experience replay for loops of one's own, in numpy alone.

Proportional prioritization as in Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay"
(ICLR 2016): a transition is drawn with a probability proportional to its priority to the power of `alpha`,
and weights correct for it.

Invariant: every inner node of a tree is computed from its two children alone, so the trees depend on the
priorities and not on the order in which these came. What is drawn depends on them and on the generator
that is passed, and on nothing else: a restored buffer draws as the undisturbed one.

Not promised: safety for several threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from unbroken.capture.rings import Ring
from unbroken.errors import ConfigError


class PrioritizedSample(NamedTuple):
    """What `PrioritizedReplayBuffer.sample` draws: `n` transitions."""

    rows: dict[str, NDArray[Any]]
    """Field -> its values, of shape (n, …) and the field's dtype. Copies."""
    indices: NDArray[np.int64]
    """(n,): where they lie, for `update`."""
    weights: NDArray[np.float64]
    """(n,): importance-sampling weights in (0, 1]; the rarest transition of the buffer would have 1."""


class PrioritizedReplayBuffer:
    """The newest `capacity` transitions, drawn by priority, as in Schaul et al., "Prioritized Experience Replay" (ICLR 2016).

    `fields` maps each field of a transition to its shape and dtype. `alpha` from 0 (all are drawn alike)
    to 1 says how much priorities count. `epsilon` is added to every priority that `update` gets, in its
    unit, so that no transition is out of reach.

    >>> buffer = PrioritizedReplayBuffer(1000, {"obs": ((4,), "f4"), "action": ((), "i8")})
    >>> buffer.add(obs=[0.0, 0.1, 0.0, 0.2], action=1)
    >>> drawn = buffer.sample(2, np.random.default_rng(1), beta=0.4)
    >>> drawn.rows["obs"].shape, drawn.indices.tolist(), drawn.weights.tolist()
    ((2, 4), [0, 0], [1.0, 1.0])
    >>> buffer.update(drawn.indices, [0.5, 0.7])

    A checkpoint captures the rows that are new since the one before, and the trees whole (16 to 64 bytes
    a transition).

    Raises:
        ConfigError: there is no room for a transition or no field, `alpha` is outside of 0 to 1, or `epsilon` is not
            above 0.
    """

    # Priorities change anywhere, and so do all nodes above them: the trees are ordinary arrays.
    __unbroken_ring__ = Ring(("rows",), position="position", adds="added")

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
        *,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
    ) -> None:
        if capacity < 1 or not fields:
            raise ConfigError(
                f"A buffer of {capacity} transitions with {len(fields)} fields holds nothing.",
                hint='Give a capacity and fields, such as {"obs": ((4,), "f4"), "reward": ((), "f4")}.',
            )
        if not 0 <= alpha <= 1 or not epsilon > 0:
            raise ConfigError(
                f"alpha={alpha!r} has to lie between 0 and 1, and epsilon={epsilon!r} above 0.",
                hint="The paper's values are alpha=0.6 and a small epsilon.",
            )
        self.rows = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()}
        self.capacity = capacity
        self.alpha = alpha
        self.epsilon = epsilon
        self.position = 0
        """The row that is written next."""
        self.added = 0
        """Transitions added since the start."""
        self.largest = 1.0
        """The largest priority so far, which new transitions get."""
        self._width = 1 << (capacity - 1).bit_length()
        # Node 1 is the root, the children of node i are 2i and 2i + 1, and the leaves come last.
        self._sums = np.zeros(2 * self._width)
        self._least = np.full(2 * self._width, np.inf)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, **row: ArrayLike) -> None:
        """Add one transition, in the place of the oldest if there is no room.

        Raises ConfigError if the fields are not those of the buffer.
        """
        self._check(row)
        for name, value in row.items():
            self.rows[name][self.position] = value
        self._set_one(self._width + self.position, self.largest**self.alpha)
        self.position = (self.position + 1) % self.capacity
        self.added += 1

    def extend(self, **rows: ArrayLike) -> None:
        """Add `n` transitions at once, oldest first: each field of shape (n, …).

        Raises ConfigError if the fields are not those of the buffer, not of their shape, or not of one length.
        """
        self._check(rows)
        columns = {name: np.asarray(values, self.rows[name].dtype) for name, values in rows.items()}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise ConfigError(
                f"The fields have {sorted(lengths)} rows.", hint="Give every field as many as the others."
            )
        (count,) = lengths
        for name, column in columns.items():  # before a row is written: it would not be counted
            if column.shape[1:] != self.rows[name].shape[1:]:
                raise ConfigError(
                    f"The rows of {name} have the shape {column.shape[1:]}, not {self.rows[name].shape[1:]}.",
                    hint="Give every field its shape behind the number of rows.",
                )
        kept = min(count, self.capacity)  # the others would be overwritten by these
        places = (self.position + np.arange(count - kept, count)) % self.capacity
        for name, column in columns.items():
            self.rows[name][places] = column[count - kept :]
        self._set(places, np.full(kept, self.largest))
        self.position = (self.position + count) % self.capacity
        self.added += count

    def sample(self, size: int, rng: np.random.Generator, *, beta: float) -> PrioritizedSample:
        """Draw `size` transitions, one from each of `size` equal parts of the priorities' sum.

        `beta` from 0 to 1 says how far the weights correct for what is drawn more often. Draws `size`
        numbers from `rng`.

        Raises ConfigError if the buffer is empty.
        """
        if not len(self):
            raise ConfigError("An empty buffer has nothing to draw from.", hint="Add transitions first.")
        marks = (np.arange(size) + rng.random(size)) * (self._sums[1] / size)
        index = self._find(marks)
        weights = (self._sums[self._width + index] / self._least[1]) ** -beta
        return PrioritizedSample({name: rows[index] for name, rows in self.rows.items()}, index, weights)

    def update(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of transitions that were drawn: the size of their TD error, in its unit, at
        least 0. Where a transition stands twice in `indices`, the last counts.

        Raises ConfigError if a priority is negative or not finite, or an index is not of this buffer.
        """
        places = np.asarray(indices, np.int64).reshape(-1)
        values = np.asarray(priorities, np.float64).reshape(-1)
        if values.shape != places.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise ConfigError(
                "Priorities have to be finite numbers of at least 0, one for each index.",
                hint="Pass the absolute TD errors; a loss that is NaN shows here first.",
            )
        if places.size == 0:
            return
        if places.min() < 0 or places.max() >= len(self):
            raise ConfigError(
                f"The buffer has no transitions {places.min()} to {places.max()}.",
                hint="Pass the `indices` of a sample.",
            )
        values = values + self.epsilon
        self.largest = max(self.largest, float(values.max()))
        self._set(places, values)

    def _check(self, row: Mapping[str, object]) -> None:
        if row.keys() != self.rows.keys():
            raise ConfigError(
                f"A transition has the fields {', '.join(self.rows)}, not {', '.join(row)}.",
                hint="Give each field of the buffer, and no other.",
            )

    def _set_one(self, node: int, power: float) -> None:
        """Do what `_set` does for one leaf, ten times as fast."""
        sums, least = self._sums, self._least
        sums[node] = least[node] = power
        while node := node >> 1:
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            least[node] = min(least[2 * node], least[2 * node + 1])

    def _set(self, places: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        nodes = self._width + places
        self._sums[nodes] = self._least[nodes] = priorities**self.alpha
        while (nodes := nodes >> 1).any():  # all of one level; what stands there twice is set twice
            left, right = 2 * nodes, 2 * nodes + 1
            self._sums[nodes] = self._sums[left] + self._sums[right]
            self._least[nodes] = np.minimum(self._least[left], self._least[right])

    def _find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaves at these distances along the sum of all."""
        nodes = np.ones(len(marks), np.int64)
        for _ in range(self._width.bit_length() - 1):
            left = self._sums[2 * nodes]
            # Rounding may leave a mark at the very end of a subtree: what is empty is never entered.
            right = (marks >= left) & (self._sums[2 * nodes + 1] > 0)
            marks = np.where(right, marks - left, marks)
            nodes = 2 * nodes + right
        return nodes - self._width

"""The rows of an exported replay buffer, as a buffer of Stable-Baselines3 takes them.

Invariant: rows that do not fit are refused before the buffer is touched, and not in the middle of filling it.

Not promised: buffers that are derived from those of SB3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from unbroken.adapters.neutral.reading import Replay
from unbroken.errors import ConfigError, StateMismatch

ROLES = ("obs", "next_obs", "actions", "rewards", "terminated", "truncated", "dones")
_PIECE = 1 << 16
"""Rows that are looked at together."""


class Rows:
    """Rows that fit a buffer: one step of all its environments at a time."""

    def __init__(self, source: Replay, fields: Mapping[str, str], buffer: Any) -> None:
        """Look for the columns, and compare all of them with the buffer.

        Raises:
            ConfigError: `fields` names something that is not there, or a column is missing.
            StateMismatch: a shape, a type or the order of the rows does not fit.
        """
        self._buffer = buffer
        self._source = source
        self._fields = fields
        unknown = sorted(fields.keys() - set(ROLES))
        if unknown:
            raise ConfigError(
                f"fields= names {', '.join(map(repr, unknown))}, which no buffer of SB3 has.",
                hint=f"It may name: {', '.join(ROLES)}.",
            )
        self.environments = int(buffer.n_envs)
        given = max(1, source.record.environments)
        self._flat = given != self.environments
        transitions = len(source) * given
        self.steps, self.dropped = divmod(transitions, self.environments) if self._flat else (len(source), 0)
        self._inner = 1 if source.record.environments else 0
        self.kept = min(self.steps, int(buffer.buffer_size))
        keys = list(buffer.observations) if isinstance(buffer.observations, dict) else [""]
        self._obs = {key: self._column("obs", key) for key in keys}
        self._next_obs = {key: self._column("next_obs", key) for key in keys}
        self._actions = self._column("actions")
        self._rewards = self._column("rewards")
        self._ended, self._late = self._ends(set(source))
        self._check()

    def _column(self, role: str, key: str = "") -> NDArray[Any]:
        name = self._fields.get(role, role)
        return self._source[f"{name}.{key}" if key else name]

    def _ends(self, names: set[str]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the columns that say that an episode has ended, and that it has run out of time."""
        late = "truncated" in self._fields or "truncated" in names
        for role in ("terminated", "dones"):
            if role in self._fields or role in names:
                return self._column(role), self._column("truncated") if late else None
        raise ConfigError(
            "The buffer has no column that says where episodes end.", hint="Name it: fields={'dones': …}."
        )

    def _check(self) -> None:
        wrong = [*self._unfit()]
        if not wrong and getattr(self._buffer, "optimize_memory_usage", False) and not self._follow():
            wrong = ["next_obs: not the obs of the row after it, and the model keeps one for both"]
        if wrong:
            raise StateMismatch(
                "The replay buffer does not fit the model. The model is as it was.",
                hint="Build the model on environments with the same spaces, and say with fields= which column is which.",
                differences=wrong,
            )

    def _unfit(self) -> Iterator[str]:
        """Yield a line for each column that the buffer cannot take as it is."""
        buffer = self._buffer
        flags = [("terminated or dones", self._ended)]
        flags += [] if self._late is None else [("truncated", self._late)]
        for name, column in flags:
            if not (wrong := self._wrong_size(name, column, 1)) and not _are_flags(column):
                wrong = f"{name}: numbers other than 0 and 1 in the export"
            if wrong:
                yield wrong
        taken = [("actions", self._actions, buffer.actions), ("rewards", self._rewards, buffer.rewards)]
        for key in self._obs:
            held = buffer.observations[key] if key else buffer.observations
            taken.append((f"obs {key}".strip(), self._obs[key], held))
            taken.append((f"next_obs {key}".strip(), self._next_obs[key], held))
        for name, column, held in taken:
            if not (wrong := self._wrong_size(name, column, int(np.prod(held.shape[2:])))) and not _holds(
                held.dtype, column
            ):
                wrong = (
                    f"{name}: {held.dtype} in the model, and other numbers of {column.dtype} in the export"
                )
            if wrong:
                yield wrong

    def _wrong_size(self, name: str, column: NDArray[Any], size: int) -> str:
        found = int(np.prod(column.shape[1 + self._inner :]))
        return "" if found == size else f"{name}: {size} numbers a row in the model, {found} in the export"

    def _follow(self) -> bool:
        """Whether each step's next observation is the following step's observation, but where an episode ends."""
        ((key, obs),) = self._obs.items()
        shape, dtype = tuple(self._buffer.observations.shape[2:]), self._buffer.observations.dtype
        for step in range(self.steps - self.kept, self.steps - 1):
            reached = self._at(self._next_obs[key], step, shape).astype(dtype)
            following = self._at(obs, step + 1, shape).astype(dtype)
            for i, ended in enumerate(self._dones(step)):
                if not ended and reached[i].tobytes() != following[i].tobytes():
                    return False
        return True

    def fill(self) -> None:
        """Put the rows into the buffer, as its own `add` does it."""
        buffer, record = self._buffer, self._source.record
        buffer.reset()
        if not self._flat and record.capacity == buffer.buffer_size and record.rows >= record.capacity - 1:
            # Rows lie where they lay: the same generator draws the same ones.
            buffer.pos = (record.position + record.capacity - record.rows) % record.capacity
        for step in range(self.steps - self.kept, self.steps):
            late = self._late
            flags = np.zeros(self.environments, bool) if late is None else self._flags(late, step)
            buffer.add(
                self._observation(self._obs, step),
                self._observation(self._next_obs, step),
                self._at(self._actions, step, tuple(buffer.actions.shape[2:])),
                self._at(self._rewards, step, ()),
                self._dones(step),
                [{"TimeLimit.truncated": bool(flag)} for flag in flags],
            )

    def _dones(self, step: int) -> NDArray[Any]:
        ended = self._flags(self._ended, step)
        return ended if self._late is None else ended | self._flags(self._late, step)

    def _flags(self, column: NDArray[Any], step: int) -> NDArray[Any]:
        return self._at(column, step, ()).astype(bool)

    def _observation(self, columns: Mapping[str, NDArray[Any]], step: int) -> Any:
        held = self._buffer.observations
        found = {
            key: self._at(column, step, tuple((held[key] if key else held).shape[2:]))
            for key, column in columns.items()
        }
        return found if isinstance(held, dict) else found[""]

    def _at(self, column: NDArray[Any], step: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return what a column holds for one step of all environments of the model."""
        if not self._flat:
            return np.array(column[step]).reshape(self.environments, *shape)
        first = self.dropped + step * self.environments
        rows = column.reshape(-1, *column.shape[1 + self._inner :])
        return np.array(rows[first : first + self.environments]).reshape(self.environments, *shape)


def _pieces(column: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for at in range(0, len(column), _PIECE):
        yield np.asarray(column[at : at + _PIECE])


def _are_flags(column: NDArray[Any]) -> bool:
    return all(bool(((piece == 0) | (piece == 1)).all()) for piece in _pieces(column))


def _holds(dtype: DTypeLike, column: NDArray[Any]) -> bool:
    """Whether an array of this type takes the column: a float of less precision does, half a pixel does not."""
    if np.can_cast(column.dtype, dtype, "same_kind"):
        return True
    if column.dtype.kind not in "biuf":
        return False
    with np.errstate(invalid="ignore"):
        return all(bool((piece.astype(dtype) == piece).all()) for piece in _pieces(column))

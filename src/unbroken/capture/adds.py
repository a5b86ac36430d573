"""Counts the rows that are added to a ring, where the buffer itself does not.

Position and `full` are the same after exactly one lap, so without a count a ring that was written all over
could pass for an unchanged one. The count follows the position from call to call of the method that adds,
and says where it is not sure: a call that raised, one that left the position where it was, a position that
moved while nobody called.

Not promised: rows that are written without the method while the position ends where it was. `audit` finds
those.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Any, NamedTuple

from unbroken.capture.hooks import Hook
from unbroken.capture.rings import Ring


class Count(NamedTuple):
    """What a counter has seen up to a moment."""

    rows: int
    """Added by calls that say how many."""
    unclear: int
    """How often it is not known how many were added."""
    failed: int
    """How often a call raised, perhaps half-way, or the buffer's own count was set back."""


class AddCounter:
    """Stands on `buffer` from `watch` until `remove`."""

    def __init__(self, buffer: Any, ring: Ring, capacity: int) -> None:
        self.buffer = buffer
        self.capacity = capacity
        self._attribute = ring.position
        self._adds = ring.adds
        self._position = self._now()
        self._told = self._tells()
        self._rows = self._unclear = self._failed = self._depth = 0
        self._hook = Hook(buffer, ring.method, self._add, keeper=self)

    @classmethod
    def watch(cls, buffer: Any, ring: Ring, capacity: int) -> AddCounter | None:
        """Put a counter on `buffer`; None where nothing can be watched."""
        if (
            not ring.position
            or not hasattr(buffer, "__dict__")
            or not callable(getattr(buffer, ring.method, None))
        ):
            return None
        own = vars(buffer).get(ring.method)
        if isinstance(own, MethodType) and own.__func__ is getattr(type(buffer), ring.method, None):
            delattr(buffer, ring.method)  # all that a copy of a watched buffer has of the counter
        counter = cls(buffer, ring, capacity)
        try:
            counter._hook.install()
        except (AttributeError, TypeError):  # a class that does not let its attributes be set
            return None
        return counter

    def count(self) -> Count:
        """Return what was counted so far. For clean points."""
        self._look_back()
        if self._moved() or vars(self.buffer).get(self._hook.name) is not self._hook:
            self._unclear += 1
        return Count(self._rows, self._unclear, self._failed)

    def remove(self) -> None:
        """Leave the buffer as it was."""
        self._hook.remove()

    def _add(self, *args: Any, **kwargs: Any) -> Any:
        self._look_back()
        # The method may call itself, row by row: then the inner calls have counted already.
        moved = self._moved()
        if self._depth:
            self._rows += moved
        elif moved:
            self._unclear += 1
        counted = self._rows
        self._depth += 1
        try:
            result = self._hook.original(*args, **kwargs)
        except BaseException:
            self._moved()
            self._failed += 1
            raise
        finally:
            self._depth -= 1
        self._rows += self._moved()
        if self._rows == counted or _longer(args, self.capacity) or _longer(kwargs.values(), self.capacity):
            self._unclear += 1  # nothing, or whole laps
        return result

    def _now(self) -> int:
        return int(getattr(self.buffer, self._attribute))

    def _tells(self) -> int:
        return int(getattr(self.buffer, self._adds)) if self._adds else 0

    def _look_back(self) -> None:
        told = self._tells()
        if told < self._told:
            self._failed += 1
        self._told = told

    def _moved(self) -> int:
        """Return how far the position has moved since it was looked at last."""
        now = self._now()
        moved = (now - self._position) % self.capacity
        self._position = now
        return moved


def _longer(arguments: Collection[Any], length: int) -> bool:
    """Whether these, or one of them, are more than so many. A batch that is longer than the ring goes round it."""
    if len(arguments) > length:
        return True
    for argument in arguments:
        shape = getattr(argument, "shape", None)
        if shape is not None:
            if shape and shape[0] > length:
                return True
        elif isinstance(argument, dict):
            if _longer(argument.values(), length):
                return True
        elif isinstance(argument, (list, tuple)) and len(argument) > length:
            return True
    return False

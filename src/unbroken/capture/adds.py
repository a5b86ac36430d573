"""Counts the rows that are added to a ring, where the buffer itself does not.

Position and `full` are the same after exactly one lap, so without a count a ring that was written all over
could pass for an unchanged one. The count follows the position from call to call of the method that adds.

Not promised: calls that add more rows than the ring has.
"""

from __future__ import annotations

from typing import Any

from unbroken.capture.hooks import Hook
from unbroken.capture.rings import Ring


class AddCounter:
    """Stands on one buffer from `watch` until `remove`. `rows` is how many were added since."""

    def __init__(self, buffer: Any, ring: Ring, capacity: int) -> None:
        self.rows = 0
        self._buffer = buffer
        self._position = ring.position
        self._capacity = capacity
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
        counter = cls(buffer, ring, capacity)
        counter._hook.install()
        return counter

    @property
    def in_place(self) -> bool:
        """Whether the buffer still calls this counter."""
        return vars(self._buffer).get(self._hook.name) is self._hook

    def remove(self) -> None:
        """Leave the buffer as it was."""
        self._hook.remove()

    def _add(self, *args: Any, **kwargs: Any) -> Any:
        before = int(getattr(self._buffer, self._position))
        try:
            return self._hook.original(*args, **kwargs)
        finally:
            moved = (int(getattr(self._buffer, self._position)) - before) % self._capacity
            # A call that leaves the position where it was has added one lap, or nothing, or has failed
            # half-way: all rows are taken for new, which is never wrong.
            self.rows += moved or self._capacity

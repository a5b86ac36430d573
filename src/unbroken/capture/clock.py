"""The clock of a process in which an environment is tried: it can be set ahead, and knows who reads it.

Only for a process that does nothing else and ends afterwards. Not promised: clocks that C code reads, and
functions of `time` that somebody has put away elsewhere than in a module before the clock came.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

NAMES = ("time", "monotonic", "perf_counter")
AHEAD = 90_061.5
"""A day and a bit: so much is the clock set ahead, so that whoever depends on it shows it."""

_REPORTS = ("unbroken.", "stable_baselines3.common.", "gymnasium.wrappers.")


class Clock:
    """Stands for the clock from `install` on."""

    def __init__(self) -> None:
        self.readers: set[str] = set()
        """Modules that have read it."""
        self._ahead = 0.0

    def install(self, inside: Collection[str] = ()) -> None:
        """Take the place of the functions of `time`, and of what these modules have taken out of it."""
        stands_for: dict[int, Any] = {id(datetime.datetime): self._dated()}
        for name in NAMES:
            for full, scale in ((name, 1), (f"{name}_ns", 10**9)):
                original = getattr(time, full)
                reading = self._reading(original, scale)
                stands_for[id(original)] = reading
                setattr(time, full, reading)
        for module in inside:
            own = vars(sys.modules.get(module, object))
            for name, value in list(own.items()):
                if id(value) in stands_for:
                    setattr(sys.modules[module], name, stands_for[id(value)])
        setattr(datetime, "datetime", stands_for[id(datetime.datetime)])  # noqa: B010 - it is final for mypy

    def advance(self) -> None:
        """Set the clock ahead."""
        self._ahead += AHEAD

    def readers_outside(self) -> list[str]:
        """Return the modules that have read the clock, but for our own and those that only report how long it took."""
        return sorted(name for name in self.readers if not name.startswith(_REPORTS))

    def _saw(self, depth: int = 2) -> None:
        self.readers.add(str(sys._getframe(depth).f_globals.get("__name__", "?")))

    def _reading(self, original: Callable[[], Any], scale: int) -> Callable[[], Any]:
        def read() -> Any:
            self._saw()
            value = original()
            return value + type(value)(self._ahead * scale)

        return read

    def _dated(self) -> type[datetime.datetime]:
        clock, plain = self, datetime.datetime

        class Kind(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, plain)

        class Dated(datetime.datetime, metaclass=Kind):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Any:
                clock._saw()
                return plain.now(tz) + datetime.timedelta(seconds=clock._ahead)

            @classmethod
            def today(cls) -> Any:
                clock._saw()
                return plain.now() + datetime.timedelta(seconds=clock._ahead)

        return Dated

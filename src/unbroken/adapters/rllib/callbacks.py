"""The callbacks of an Algorithm or of a runner, each by the name of its class.

One that only the saved or only the present program has is no obstacle: it is left out, or begins fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unbroken.state.nodes import Value
from unbroken.state.policy import Captor

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class Callbacks:
    """The callbacks `of` an Algorithm or a runner by name; a second one of a class has a number, too."""

    def __init__(self, of: Iterable[object]) -> None:
        self.named: dict[str, object] = {}
        count: Counter[str] = Counter()
        for callback in of:
            name = type(callback).__qualname__
            count[name] += 1
            self.named[name if count[name] == 1 else f"{name}#{count[name]}"] = callback


class CallbacksCaptor:
    """Captor of `Callbacks`."""

    def attributes(self, obj: Callbacks) -> frozenset[str]:
        return frozenset()

    def capture(self, obj: Callbacks, walk: Walk) -> dict[str, Value]:
        return {name: walk.child(f"<{name}>", callback) for name, callback in obj.named.items()}

    def plan(self, extra: dict[str, Value], obj: Callbacks, graft: Graft) -> None:
        for name, callback in obj.named.items():
            if name not in extra:
                graft.note_at(f"<{name}>", "fresh", "was not saved and starts as built.")
            elif graft.value(f"<{name}>", extra[name], callback) is not callback:
                graft.error(f"the callback {name} cannot take what was saved.")
        for name in extra:
            if name not in obj.named:
                graft.note_at(f"<{name}>", "lost", "was saved and the program has it no more.")


_captor = CallbacksCaptor()


def callbacks_rule(obj: object) -> Captor | None:
    """Return the captor of callbacks, None for anything else."""
    return _captor if isinstance(obj, Callbacks) else None

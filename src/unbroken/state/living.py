"""What of a process is more than a value: it goes on by itself, or what it stands for lies elsewhere.

A lock or a closed file is made anew by a restart, and nothing is lost. A file in the middle, a thread that runs
or the other end of a connection are not in any checkpoint.

Not promised: what classes of C extensions keep to themselves; a probe of environments looks at those.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Lost: TypeAlias = 'tuple[Literal["outside", "not captured"], str]'
"""A kind of note, and what it says. Outside: a restart finds it there, in the state in which the last process left it."""


_OWN_STEPS = "unbroken.engine.steps:Steps"
"""What a loop iterates over: a start enters it where the checkpoint is."""


def lost_with(value: object) -> Lost | None:
    """Return what no checkpoint has of a value that is kept from outside; None if that is nothing."""
    if isinstance(value, io.IOBase):
        return _file(value)
    for module, name, told in _KINDS:
        kind = getattr(sys.modules.get(module), name, None)  # where nobody has imported it there is none
        if kind is not None and isinstance(value, kind):
            return told(value)
    goes_on = hasattr(type(value), "__next__") and _class_of(value) != _OWN_STEPS
    return ("not captured", _class_of(value)) if goes_on else None


def _file(value: io.IOBase) -> Lost | None:
    if value.closed or any(value is stream for stream in _streams()):
        return None
    name = getattr(value, "name", "")
    what = f"an open file{f' ({name})' if isinstance(name, str) and name else ''}"
    if value.writable():
        return "outside", f"{what}, which is as the next start opens it"
    return "not captured", f"{what}, which is read on"


def _streams() -> tuple[object, ...]:
    return (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)


def _thread(value: Any) -> Lost | None:
    if not value.is_alive() or value is sys.modules["threading"].main_thread():
        return None
    return "not captured", f"a thread that runs ({value.name})"


def _process(value: Any) -> Lost | None:
    # Its own note of how it ended, and no question to the system: that would take the answer from its owner.
    return None if value.returncode is not None else ("not captured", f"another process ({value.pid})")


def _socket(value: Any) -> Lost | None:
    return None if value.fileno() < 0 else ("not captured", "an open connection")


def _class_of(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _queue(value: Any) -> Lost | None:
    try:
        empty = value.empty()
    except (OSError, ValueError):  # it is closed
        return None
    return None if empty else ("not captured", "a queue between processes or tasks, in which something waits")


_KINDS: tuple[tuple[str, str, Callable[[Any], Lost | None]], ...] = (
    ("threading", "Thread", _thread),
    ("subprocess", "Popen", _process),
    ("socket", "socket", _socket),
    ("multiprocessing.queues", "Queue", _queue),
    ("multiprocessing.queues", "SimpleQueue", _queue),
    ("asyncio.queues", "Queue", _queue),
    (
        "multiprocessing.managers",
        "BaseProxy",
        lambda _: ("not captured", "what the process of a manager holds"),
    ),
)

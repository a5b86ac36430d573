"""What the tests of one process share, however little they want to: its signals, variables, directory, hooks and switches.

Which files run in a process, and in which order, depends on how fast the others were. So each has to find what the
first one found.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple


@contextmanager
def left_as_found() -> Generator[None]:
    """Put back, in the end, what the tests that ran meanwhile have changed of their process."""
    found = [(place, place.read()) for place in _PLACES]
    yield
    for place, before in found:
        if place.read() != before:
            place.put_back(before)
    _as_loaded()


def default_signals() -> None:
    """Let each signal do what it does in a process that Python has just begun."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class _Place(NamedTuple):
    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def _signals() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _put_back_signals(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        # None is a handler that is not Python's: it cannot be put back from here.
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _put_back_variables(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _put_back_directory(before: str | None) -> None:
    if before is not None:
        os.chdir(before)


def _hooks() -> tuple[Any, ...]:
    return sys.excepthook, sys.unraisablehook, threading.excepthook


def _put_back_hooks(before: tuple[Any, ...]) -> None:
    sys.excepthook, sys.unraisablehook, threading.excepthook = before


def _logging() -> tuple[int, int]:
    return logging.root.level, logging.root.manager.disable


def _put_back_logging(before: tuple[int, int]) -> None:
    logging.root.setLevel(before[0])
    logging.disable(before[1])


_PLACES = (
    _Place(_signals, _put_back_signals),
    _Place(lambda: dict(os.environ), _put_back_variables),
    _Place(_directory, _put_back_directory),
    _Place(lambda: list(sys.path), lambda before: sys.path.__setitem__(slice(None), before)),
    _Place(_hooks, _put_back_hooks),
    _Place(_logging, _put_back_logging),
    _Place(sys.getrecursionlimit, sys.setrecursionlimit),
    _Place(sys.getswitchinterval, sys.setswitchinterval),
)


def _as_loaded() -> None:
    """Give the frameworks the ways they have when they are loaded: a file may be the first that loads them."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_grad_enabled(True)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    if (signals := sys.modules.get("unbroken.engine.signals")) is not None:
        # A training that a signal has ended makes more of them be without effect for a minute.
        signals._handlers._lingers_until = 0.0

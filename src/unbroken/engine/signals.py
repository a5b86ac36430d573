"""The signals by which people and clusters end a process, caught for as long as somebody here wants to hear of them.

Invariants: a signal is ours only where nobody else has a handler for it, in Python or in C; when the last listener is
gone, what was there before is back. A forked child has none of it: there a signal does what it always did.

After a listener has ended its training because of a signal, more of that kind change nothing (a cluster that has sent
one may send ten): they do not kill a process that is on its way out. After the time that it has asked for they act as
they did before.

Not promised: anything in another thread than the main one, where Python lets nobody handle signals; that a handler
written in C is seen on another system than Linux.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeAlias

from unbroken.engine.standing import Notice

Listener: TypeAlias = Callable[[int], None]
"""Hears the number of a signal, in the main thread, between any two steps of Python. What it raises ends the process."""


class _Handlers:
    """What this process catches. There is one, since a process has one handler for a signal."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, frozenset[int]] = {}
        self._before: dict[int, Any] = {}
        """What was there where ours is now."""
        self._replaceable: list[Callable[[object], bool]] = []
        self._masks = threading.local()
        self._owner = 0
        self._lingers_until = 0.0
        self._notice = Notice()
        self._handler = self._caught  # one object: each access of a method makes another

    def replace_where(self, only_ends: Callable[[object], bool]) -> None:
        if only_ends not in self._replaceable:
            self._replaceable.append(only_ends)

    def listen(self, names: Collection[str], listener: Listener) -> frozenset[str]:
        if threading.current_thread() is not threading.main_thread():
            return frozenset()
        if not self._owner:
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._unmask, after_in_child=self._after_fork
            )
            atexit.register(self._at_exit)
        self._owner = os.getpid()
        numbers = {name: int(signal.Signals[name]) for name in names}
        ours = {name: n for name, n in numbers.items() if self._is_ours(n) or self._is_free(n)}
        self._listeners[listener] = frozenset(ours.values())
        for number in ours.values():
            if not self._is_ours(number):
                self._before[number] = signal.signal(number, self._handler)
        self._tell_workers()
        return frozenset(ours)

    def forget(self, listener: Listener, *, linger: float) -> None:
        if linger:  # first: a signal may come between any two of these lines
            self._lingers_until = max(self._lingers_until, time.monotonic() + linger)
        numbers = self._listeners.pop(listener, frozenset())
        wanted = self._tell_workers()
        # A signal that is on its way to this thread is handled here, and not by what is put back.
        signal.pthread_sigmask(signal.SIG_BLOCK, ())
        for number in numbers - wanted:
            if not linger or number == signal.SIGINT:
                self._give_back(number)

    def _tell_workers(self) -> frozenset[int]:
        """Show which signals are answered here, and return them."""
        wanted = frozenset[int]().union(*self._listeners.values())
        if os.getpid() == self._owner:
            self._notice.show(wanted)
        return wanted

    def _is_ours(self, number: int) -> bool:
        return number in self._before and signal.getsignal(number) is self._handler

    def _is_free(self, number: int) -> bool:
        handler = signal.getsignal(number)
        if number == signal.SIGINT and handler is signal.default_int_handler:
            return True
        if handler is signal.SIG_DFL:
            return not _is_caught_in_c(number)
        return any(only_ends(handler) for only_ends in self._replaceable)

    def _give_back(self, number: int) -> None:
        if self._is_ours(number):
            with suppress(ValueError):  # not the main thread: `_caught` does it when the next one comes
                signal.signal(number, self._before[number])
                del self._before[number]

    def _caught(self, number: int, _frame: object) -> None:
        heard = [listener for listener, numbers in list(self._listeners.items()) if number in numbers]
        if os.getpid() != self._owner or not heard:
            if os.getpid() == self._owner and number != signal.SIGINT and self._lingers:
                return
            signal.signal(number, self._before.pop(number, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        ends: BaseException | None = None
        for listener in heard:
            try:
                listener(number)
            except BaseException as error:  # noqa: BLE001 - raised once all have heard
                ends = ends or error
        if ends is not None:
            raise ends

    @property
    def _lingers(self) -> bool:
        return time.monotonic() < self._lingers_until

    def _before_fork(self) -> None:
        """What comes between a fork and the moment at which the child is its own waits: Python would drop it there."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)

    def _unmask(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _after_fork(self) -> None:
        self._listeners.clear()
        self._lingers_until = 0.0  # the child was told nothing
        self._notice.show(())  # the parent's own stays where it is
        for number in list(self._before):
            self._give_back(number)
        self._unmask()

    def _at_exit(self) -> None:
        """While Python takes itself apart, its handlers are gone: what lingers is ignored by the system from here on."""
        for number in self._before:
            if self._lingers and number != signal.SIGINT and self._is_ours(number):
                with suppress(ValueError):
                    signal.signal(number, signal.SIG_IGN)


_handlers = _Handlers()


def replace_where(only_ends: Callable[[object], bool]) -> None:
    """Take signals also from handlers of which `only_ends` says that they do nothing but end the process."""
    _handlers.replace_where(only_ends)


def listen(names: Collection[str], listener: Listener) -> frozenset[str]:
    """Have `listener` called for these signals; return the names of those that are ours. None outside of the main
    thread, and none for which the program has a handler of its own."""
    return _handlers.listen(names, listener)


def forget(listener: Listener, *, linger: float = 0.0) -> None:
    """Let it hear no more. With `linger`, what it has heard of stays without effect for so many seconds, but for
    Ctrl-C. Does nothing for one that does not listen."""
    _handlers.forget(listener, linger=linger)


def _is_caught_in_c(number: int) -> bool:
    """Whether a handler is in place of which Python knows nothing, as `faulthandler.register` puts one there."""
    with suppress(OSError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False

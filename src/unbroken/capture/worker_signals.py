"""Signals in a process that holds environments: as long as the trainer answers a signal itself, it means nothing here.

Ctrl-C and most batch systems signal a whole group. A worker that died of it would take the state of its environment
along before the trainer has come to its next clean point. So it leaves the answer to the trainer, and ends with it: its
pipe closes. Where the trainer does not answer, or no more, a signal does what it always did.

Invariant: only default handlers are replaced. Not promised: a worker that is in one long call into C hears of nothing
until that returns, as ever; signals that Python is not asked about (SIGKILL).
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

from unbroken.engine.standing import answered_by
from unbroken.repo.process import Process

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PATIENCE = 120.0
"""Seconds after the first signal at which a worker stops waiting for its trainer: who has sent it may wait for the
worker's end, and the trainer for that one."""


class Deference:
    """What the signals of one worker process do while it leaves them to its trainer."""

    def __init__(self, trainer: Process) -> None:
        self._trainer = trainer
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._is_over = False

    def begin(self) -> None:
        """Leave the signals to the trainer from here on. May be called again; only in the main thread does it act."""
        if os.getpid() == self._trainer.pid:
            return
        for number in SIGNALS:
            if number not in self._before and signal.getsignal(number) in (
                signal.SIG_DFL,
                signal.default_int_handler,
            ):
                with suppress(ValueError):
                    self._before[number] = signal.signal(number, self._caught)

    def end(self) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            with suppress(ValueError):
                signal.signal(number, handler)
        self._before.clear()

    def _caught(self, number: int, _frame: object) -> None:
        if not self._is_over and number in answered_by(self._trainer):
            if self._timer is None:
                self._timer = threading.Timer(PATIENCE, self._give_up, [number])
                self._timer.daemon = True
                self._timer.start()
            return
        signal.signal(number, self._before.pop(number, signal.SIG_DFL))
        signal.raise_signal(number)

    def _give_up(self, number: int) -> None:
        self._is_over = True
        os.kill(os.getpid(), number)  # the main thread handles it

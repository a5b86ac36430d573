"""A thread that does one thing over, as often as somebody asks for it, and no more than one at a time.

Invariants: who asks does not wait; whoever has asked while the work was being done has it done once more after
that, since it may have looked too early; between two times it rests for `rest` times as long as the work took, so that
however often it is asked for, it takes no more than its share of the time; the interpreter never waits for it.

Not promised: that it comes to an end. What hangs in it hangs alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST = 100.0
"""For one second of work so many of rest: one percent of the time."""

LONGEST_REST = 60.0


class Worker:
    """Does `work`, which raises nothing, in a thread that lives as long as there is something to do."""

    def __init__(
        self, work: Callable[[], None], *, name: str = "unbroken-metrics", rest: float = REST
    ) -> None:
        self._work = work
        self._rest = rest
        self._name = name
        self._lock = threading.Lock()
        self._wanted = False
        self._hurry = threading.Event()
        self._rested_at = 0.0
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have the work done soon.

        Raises:
            RuntimeError: the system gives no thread.
        """
        with self._lock:
            self._wanted = True
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def finish(self, seconds: float) -> bool:
        """Do what is left without a rest, and wait for it, at most so many seconds. Return whether all is done."""
        thread = self._thread
        if thread is None:
            return True
        self._hurry.set()
        thread.join(seconds)
        self._hurry.clear()
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
            self._hurry.wait(max(0.0, self._rested_at - time.monotonic()))
            with self._lock:
                self._wanted = False
            began = time.monotonic()
            self._work()
            now = time.monotonic()
            self._rested_at = now + min(self._rest * (now - began), LONGEST_REST)

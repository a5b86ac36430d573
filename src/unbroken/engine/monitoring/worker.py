"""A thread that does one thing over, as often as somebody asks for it and no more than one at a time.

Invariants: who asks does not wait; whoever has asked while the work was being done has it done once more after
that, since it may have looked too early; the interpreter never waits for it.

Not promised: that it comes to an end. What hangs in it hangs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Worker:
    """Does `work`, which raises nothing, in a thread that lives as long as there is something to do."""

    def __init__(self, work: Callable[[], None], *, name: str = "unbroken-metrics") -> None:
        self._work = work
        self._name = name
        self._lock = threading.Lock()
        self._wanted = False
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
        """Wait until nothing is left to do, at most so many seconds. Return whether that is so."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                self._wanted = False
            self._work()

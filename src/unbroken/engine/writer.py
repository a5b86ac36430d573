"""Runs one save at a time in the background and never loses its outcome.

A thread lives exactly as long as one write: nothing waits idle, nothing has to be told to stop, and a
process that forks environment workers between two saves has no thread to leave behind. The thread is
no daemon, so the interpreter does not exit before the write is finished.

Invariants: at most one write is in flight; every error reaches a caller of `check()`; a forked child
never writes; who waits does not lose sight of a write that another thread submits meanwhile.

Not promised: that two threads may submit at the same time; that a write can be cancelled (only the end of the process stops one), nor that it runs
beside the training: where the system gives no thread, it runs before `submit` returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from unbroken.errors import AmbiguousCommit, Fenced, InternalError, ReplicasDiffer, SaveFailed

START_SECONDS = 1.0
"""How long a thread may take from its start to its first line, where nobody knows whether it was started."""


class BackgroundWriter:
    """The thread beside the training. `submit` and `check` are for one thread at a time, all else for any."""

    def __init__(self, name: str = "unbroken-writer") -> None:
        self._name = name
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._what = ""
        self._told = False

    @property
    def is_child(self) -> bool:
        """Whether this process was forked from the one that trains."""
        return os.getpid() != self._owner

    @property
    def busy(self) -> bool:
        """Whether a write is in flight."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether the last write failed and nobody was told yet. Costs next to nothing."""
        return self._error is not None and not self._told

    def submit(self, what: str, work: Callable[[], None]) -> None:
        """Start `work` in the background; wait first for the one before.

        Raises:
            SaveFailed, Fenced, AmbiguousCommit: the one before failed. `work` was not started.
        """
        if self.is_child:
            raise InternalError("A forked child tried to write a checkpoint.")
        self.wait()
        self.check()
        self._error, self._told, self._what = None, False, what
        gate, begun = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, args=(work, gate, begun), name=self._name, daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no more threads to be had: slow is better than lost
            gate.set()
            self._run(work, gate, begun)
        except BaseException:
            # An interrupt while it starts. If there is a thread, it writes and is waited for like any other;
            # left at the gate it would keep the interpreter from ever ending.
            gate.set()
            self._thread = thread if begun.wait(START_SECONDS) else None
            raise
        else:
            self._thread = thread
            # `start` waits until the thread runs. Would it go on at once, training had to wait for its
            # turn with Python's lock, up to five milliseconds.
            gate.set()

    def _run(self, work: Callable[[], None], gate: threading.Event, begun: threading.Event) -> None:
        begun.set()
        gate.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - kept for the training thread, which raises it
            self._error = error

    def wait(self) -> None:
        """Wait until nothing is in flight. Raises nothing."""
        joined: threading.Thread | None = None
        # The handle stays where it is: to clear it would clear that of a write submitted in between.
        while (thread := self._thread) is not joined and thread is not None and not self.is_child:
            thread.join()
            joined = thread

    def check(self, *, again: bool = False) -> None:
        """Raise if the last finished write failed: once, or with `again` every time until one succeeds.

        Raises:
            SaveFailed: with the error of the write as its cause; or the write's own.
            Fenced, AmbiguousCommit, ReplicasDiffer: the write ended with it. What to do then is another decision than
                after a save that failed, so these come as themselves.
        """
        if self._error is None or (self._told and not again):
            return
        self._told = True
        if isinstance(self._error, (Fenced, AmbiguousCommit, ReplicasDiffer, SaveFailed)):
            raise self._error
        raise SaveFailed(
            f"The checkpoint of {self._what} was not saved: {str(self._error).strip() or type(self._error).__name__ + '.'}",
            hint="Checkpoints committed before it are intact.",
        ) from self._error

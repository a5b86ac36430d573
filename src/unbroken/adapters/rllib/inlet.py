"""Where the thread of an asynchronous learner takes its batches from; in the learner's own process.

A learner of IMPALA or APPO trains in a thread of its own. The inlet stands between this thread and its queue
and knows when it is at rest: the queue is empty and nothing that came from it is being worked on. It is put
in place on the thread's attribute; the queue and its class stay as they are.

Not promised: rest, while anyone still puts batches into the queue.
"""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty
from threading import Lock
from typing import Any

from unbroken.adapters.rllib.agent import Answer
from unbroken.errors import NotCapturable

_PAUSE = 0.0005


class Inlet:
    """A queue as the one thread sees it that takes from it."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self._lock = Lock()
        # The thread may be waiting in the queue itself: what it gets from there is not seen here.
        self._working = True

    def get(self) -> Any:
        """Wait for a batch and take it, which the thread works on until it asks for the next one."""
        while True:
            with self._lock:
                self._working = self.queue.qsize() > 0
                if self._working:
                    return self.queue.get()
            time.sleep(_PAUSE)

    @property
    def is_at_rest(self) -> bool:
        """Whether the thread has nothing to do."""
        with self._lock:
            return not self._working and self.queue.qsize() == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


def listen(learner: Any, _: Answer) -> None:
    """Put an inlet in place."""
    thread = learner._learner_thread
    if not isinstance(thread._in_queue, Inlet):
        thread._in_queue = Inlet(thread._in_queue)


def come_to_rest(learner: Any, answer: Answer, seconds: float) -> None:
    """Wait until the thread has worked off everything, and answer with the metrics that it has left."""
    thread = learner._learner_thread
    deadline = time.monotonic() + seconds
    while learner._submitted_updates and not thread._in_queue.is_at_rest:
        if not thread.is_alive():
            raise NotCapturable(
                "the learner's thread has ended by an error", hint="Look at what RLlib has said of it."
            )
        if time.monotonic() >= deadline:
            raise NotCapturable(
                f"the learner is still busy after {seconds:g} s",
                hint="Save less often, or give it less to learn.",
            )
        time.sleep(_PAUSE)
    with suppress(Empty):
        while True:
            answer.results.append(learner._learner_thread_out_queue.get_nowait())

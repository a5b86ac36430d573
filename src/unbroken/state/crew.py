"""A few threads for one piece of work, which the end of the interpreter does not take away.

The pool of the standard library takes no more work once the interpreter has begun to end, while a save
that is under way then is still written: Python waits for its thread. So these are plain threads. They start
with the first work there is and live until `shutdown`; where none can be had, the caller does the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Crew(Executor):
    """At most `size` threads. Use it from one thread, in a `with` block.

    >>> with Crew(2, "example") as crew:
    ...     list(crew.map(abs, [-1, -2, -3]))
    [1, 2, 3]
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called by the next thread that is free."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised by `future.result()`
                future.set_exception(error)

        if len(self._threads) < self._size:
            self._start()
        if self._threads:
            self._work.put((future, call))
        else:
            call()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the threads once they have done what was submitted, or with `cancel_futures` only what they
        have begun."""
        while cancel_futures:
            try:
                waiting = self._work.get_nowait()
            except Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        if wait:
            self._join()

    def _join(self) -> None:
        try:
            while self._threads:
                with suppress(RuntimeError):  # its start was interrupted; what it finds to do is to end
                    self._threads[-1].join()
                self._threads.pop()
        except BaseException:  # interrupted: the memory they write to must not be used again before they end
            self._join()
            raise

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name)
        self._threads.append(
            thread
        )  # before it starts: else one whose start is interrupted is never told to end
        try:
            thread.start()
        except RuntimeError:  # a limit of the system, or an interpreter too near its end
            self._threads.remove(thread)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work[1]()
            del work  # what it holds must not wait for the next call

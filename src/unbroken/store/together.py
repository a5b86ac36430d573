"""Several waits for the disk at the same time.

A sync that waits does nothing, and on a file system with a journal those that wait together are served
together. On an idle disk it makes no difference; on a busy one they would queue up, each anew.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

MOST_THREADS = 8


def run_together(calls: Sequence[Callable[[], None]], *, most: int = MOST_THREADS) -> None:
    """Run the calls, `most` at a time; return when all have ended, and raise the first one's error."""
    waiting = deque(enumerate(calls))
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while waiting:
            try:
                number, call = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors[number] = error

    threads = [threading.Thread(target=work, name="unbroken-sync") for _ in calls[1:most]]
    started = [thread for thread in threads if start(thread)]
    try:
        work()
    finally:
        join(started)
    if errors:
        raise errors[min(errors)]


def start(thread: threading.Thread) -> bool:
    """Start `thread`; return whether that was possible: there are limits, and an interpreter that ends."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def join(threads: list[threading.Thread]) -> None:
    """Wait for the threads even if interrupted: a file they use must not be closed, nor its number reused."""
    try:
        while threads:
            threads[-1].join()
            threads.pop()
    except BaseException:
        join(threads)
        raise

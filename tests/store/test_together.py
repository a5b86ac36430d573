"""Calls that wait at the same time."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from unbroken.store.together import MOST_THREADS, run_together


def test_all_calls_are_made_once_and_have_ended() -> None:
    made: list[int] = []
    run_together([partial(made.append, number) for number in range(50)])
    assert sorted(made) == list(range(50))
    run_together([])


def test_calls_wait_at_the_same_time() -> None:
    barrier = threading.Barrier(MOST_THREADS, timeout=60)

    def wait() -> None:
        barrier.wait()

    run_together([wait] * MOST_THREADS)


def test_one_call_needs_no_thread() -> None:
    threads: list[threading.Thread] = []
    run_together([lambda: threads.append(threading.current_thread())])
    assert threads == [threading.current_thread()]


def test_the_first_error_is_raised_after_all_calls() -> None:
    made: list[int] = []

    def call(number: int) -> None:
        made.append(number)
        if number in (3, 7):
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        run_together([partial(call, number) for number in range(20)])
    assert sorted(made) == list(range(20))


def test_an_interrupted_caller_leaves_no_thread_behind() -> None:
    """Ctrl-C arrives in the thread that called, while others still wait for the disk."""
    caller = threading.current_thread()
    both = threading.Barrier(2, timeout=60)
    ended: list[bool] = []

    def call() -> None:
        both.wait()
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_together([call, call])
    assert ended == [True]
    assert not [thread for thread in threading.enumerate() if thread.name == "unbroken-sync"]

"""The thread that tells metrics: nobody waits for it, and it does no more than is asked for."""

from __future__ import annotations

import threading

from unbroken.engine.monitoring.worker import Worker


def test_what_is_asked_for_while_it_works_is_done_once_more_after_that() -> None:
    gate, working = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        working.set()
        assert gate.wait(60)
        done.append(len(done))

    worker = Worker(work)
    worker.ask()
    assert working.wait(60)
    for _ in range(100):
        worker.ask()
    assert done == []
    gate.set()
    assert worker.finish(60)
    assert done == [0, 1]


def test_it_has_no_thread_while_there_is_nothing_to_do_and_begins_anew_when_asked() -> None:
    done: list[int] = []
    worker = Worker(lambda: done.append(threading.get_ident()))
    for _ in range(3):
        worker.ask()
        assert worker.finish(60)
        assert worker._thread is None
    assert len(done) == 3
    assert threading.get_ident() not in done


def test_what_hangs_is_not_waited_for_any_longer_than_was_said() -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(60)

    worker = Worker(hang)
    worker.ask()
    assert not worker.finish(0.01)
    gate.set()
    assert worker.finish(60)

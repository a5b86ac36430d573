"""Threads for one piece of work."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from unbroken.state.crew import Crew

AT_EXIT = """
import threading, time
from unbroken.state.crew import Crew

def late():
    threading.main_thread().join()  # the interpreter has begun to end, and waits for this thread
    with Crew(2, "crew") as crew:
        print(sum(crew.map(abs, range(-100, 0))))

threading.Thread(target=late).start()
"""


def test_it_works_while_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5050\n", "")


def test_an_interrupt_while_a_thread_starts_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Crew(2, "crew") as crew:
        crew.submit(abs, -1)
    (thread,) = started
    assert not thread.is_alive()


def test_results_and_errors_come_back_to_who_asked() -> None:
    with Crew(3, "crew") as crew:
        futures = [crew.submit(divmod, 7, n) for n in (1, 0, 2)]
        assert futures[0].result() == (7, 0)
        with pytest.raises(ZeroDivisionError):
            futures[1].result()
        assert futures[2].result() == (3, 1)


def test_there_are_no_more_threads_than_it_says_and_none_afterwards() -> None:
    together, most = threading.Barrier(2), 0

    def there() -> int:
        return sum(thread.name.startswith("unbroken-test-crew") for thread in threading.enumerate())

    def meet() -> int:
        together.wait(60)
        return there()

    with Crew(2, "unbroken-test-crew") as crew:
        most = max(crew.map(lambda _: meet(), range(10)))
    assert most == 2
    assert there() == 0


def test_what_has_not_begun_can_be_cancelled() -> None:
    begun, go = threading.Event(), threading.Event()
    ran = list[int]()

    def first() -> None:
        begun.set()
        assert go.wait(60)

    crew = Crew(1, "crew")
    crew.submit(first)
    rest = [crew.submit(ran.append, n) for n in range(5)]
    assert begun.wait(60)
    crew.shutdown(wait=False, cancel_futures=True)
    go.set()
    crew.shutdown()
    assert ran == []
    assert all(future.cancelled() for future in rest)


def test_without_threads_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Crew(2, "crew") as crew:
        assert crew.submit(threading.get_ident).result() == threading.get_ident()

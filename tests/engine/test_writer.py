"""The background writer: one at a time, nothing lost, nothing silent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from unbroken.engine.writer import BackgroundWriter
from unbroken.errors import AmbiguousCommit, Fenced, InternalError, SaveFailed, StoreFull, UnbrokenError


def fail() -> None:
    raise StoreFull("no room")


def test_work_runs_beside_the_caller_and_one_at_a_time() -> None:
    writer = BackgroundWriter()
    gate, order = threading.Event(), list[str]()

    def first() -> None:
        gate.wait()
        order.append("first")

    writer.submit("one", first)
    assert writer.busy
    opener = threading.Thread(target=gate.set)
    opener.start()
    writer.submit("two", lambda: order.append("second"))
    writer.wait()
    opener.join()
    assert order == ["first", "second"]
    assert not writer.busy


def test_who_waits_also_waits_for_a_write_that_another_thread_submits_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, gate, done, join = BackgroundWriter(), threading.Event(), list[str](), threading.Thread.join

    def second() -> None:
        gate.wait()
        done.append("second")

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if done:  # the first is over, and who waits has not gone on
            gate.set()
            return join(thread, timeout)
        join(thread, timeout)
        asking = threading.Thread(target=writer.submit, args=("two", second))
        asking.start()
        return join(asking)

    writer.submit("one", lambda: done.append("first"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", joined)
        writer.wait()
    told = list(done)
    gate.set()
    writer.wait()
    assert told == done == ["first", "second"]


def test_an_interrupt_while_the_thread_starts_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, done, start = BackgroundWriter(), list[str](), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.submit("one", lambda: done.append("one"))
    writer.submit("two", lambda: done.append("two"))
    writer.wait()
    writer.check()
    assert done == ["one", "two"]


def test_no_thread_lives_between_two_writes() -> None:
    writer = BackgroundWriter("unbroken-test-idle")
    writer.submit("one", lambda: None)
    writer.wait()
    assert not [t for t in threading.enumerate() if t.name == "unbroken-test-idle"]


def test_a_failure_is_raised_once_with_its_cause_and_then_the_next_write_may_try() -> None:
    writer = BackgroundWriter()
    writer.submit("step 5", fail)
    writer.wait()
    assert writer.failed
    with pytest.raises(SaveFailed, match="step 5") as raised:
        writer.check()
    assert isinstance(raised.value.__cause__, StoreFull)
    writer.check()
    done = list[int]()
    writer.submit("step 6", lambda: done.append(1))
    writer.wait()
    writer.check(again=True)
    assert done == [1]


def test_a_failure_that_was_told_is_told_again_at_the_end() -> None:
    writer = BackgroundWriter()
    writer.submit("step 5", fail)
    writer.wait()
    for _ in range(2):
        with pytest.raises(SaveFailed):
            writer.check(again=True)


def test_the_next_submit_raises_and_does_not_start() -> None:
    writer = BackgroundWriter()
    writer.submit("step 5", fail)
    done = list[int]()
    with pytest.raises(SaveFailed):
        writer.submit("step 6", lambda: done.append(1))
    writer.wait()
    assert done == []


def test_a_forked_child_never_writes() -> None:
    writer = BackgroundWriter()
    child = os.fork()
    if child == 0:
        refused = False
        try:
            writer.submit("step 1", lambda: None)
        except InternalError:
            refused = True
        finally:
            os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_interpreter_waits_for_the_last_write() -> None:
    script = """
import threading
from unbroken.engine.writer import BackgroundWriter
def slow():
    threading.main_thread().join()  # the script's last line has run
    print("written", flush=True)
BackgroundWriter().submit("step 1", slow)
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "written\n")


@pytest.mark.parametrize("error", [Fenced("a newer process took over"), AmbiguousCommit("nobody knows")])
def test_what_asks_for_another_decision_comes_as_itself(error: UnbrokenError) -> None:
    def lose() -> None:
        raise error

    writer = BackgroundWriter()
    writer.submit("step 5", lose)
    writer.wait()
    with pytest.raises(type(error)) as raised:
        writer.check()
    assert raised.value is error
    writer.check()
    with pytest.raises(type(error)):
        writer.check(again=True)


def test_where_no_thread_is_to_be_had_the_write_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer, done = BackgroundWriter(), list[int]()
    writer.submit("step 5", lambda: done.append(5))
    assert done == [5]
    writer.submit("step 6", fail)
    writer.wait()
    with pytest.raises(SaveFailed, match="step 6"):
        writer.check()

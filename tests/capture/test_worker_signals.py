"""A worker leaves a signal to its trainer for as long as that answers it, and does what it always did otherwise."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from unbroken.engine import signals
from unbroken.engine.standing import Notice, answered_by
from unbroken.repo.process import Process, current

WORKER = """
import os, signal
from unbroken.capture.worker_signals import Deference
from unbroken.repo.process import identify
deference = Deference(identify(os.getppid()))
deference.begin()
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
print("ready", flush=True)
while os.read(reading, 1):
    print("awake", flush=True)
"""


@pytest.fixture
def notice() -> Iterator[Notice]:
    signals._handlers._notice.show(())  # of an engine that a test elsewhere has left open
    notice = Notice()
    yield notice
    notice.show(())


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as process:
        assert said(process) == "ready"
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_means_nothing_while_the_trainer_answers_it_and_ends_the_worker_after_that(
    number: signal.Signals, notice: Notice, worker: subprocess.Popen[str]
) -> None:
    notice.show({number})
    for _ in range(3):
        worker.send_signal(number)
        assert said(worker) == "awake"
    notice.show(())
    worker.send_signal(number)
    assert worker.wait() == -number


def test_a_signal_that_the_trainer_does_not_answer_ends_the_worker(
    notice: Notice, worker: subprocess.Popen[str]
) -> None:
    notice.show({signal.SIGINT})
    worker.terminate()
    assert worker.wait() == -signal.SIGTERM


def test_a_notice_is_there_as_long_as_its_process_shows_it(notice: Notice) -> None:
    here = current()
    assert answered_by(here) == frozenset()
    notice.show({2, 15})
    assert answered_by(here) == {2, 15}
    notice.show({15})
    assert answered_by(here) == {15}
    notice.show(())
    assert answered_by(here) == frozenset()


def test_a_process_that_is_gone_answers_nothing(notice: Notice) -> None:
    notice.show({15})
    here = current()
    another = Process(pid=here.pid, start="1", boot_id=here.boot_id, host=here.host)
    assert answered_by(another) == frozenset()

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unbroken.capture.fork import Unanswered, ask_copy


def ask(question: Callable[[], Any], timeout: float = 120) -> str:
    return ask_copy(lambda: str(question()), timeout=timeout)


def test_the_copy_has_what_is_in_memory_and_changes_nothing() -> None:
    values: list[float] = [1, 2]
    python, numpy = random.getstate(), str(np.random.get_state())  # noqa: NPY002

    def change() -> list[float]:
        values.append(random.random())
        values.append(np.random.random())  # noqa: NPY002
        return values

    drawn = ask(change)
    assert values == [1, 2]
    assert random.getstate() == python
    assert str(np.random.get_state()) == numpy  # noqa: NPY002
    assert drawn == str(change())


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: os._exit(3), "status 3"),
        (os.abort, "status -6"),
    ],
)
def test_a_copy_that_ends_is_no_answer(question: Callable[[], Any], why: str) -> None:
    with pytest.raises(Unanswered, match=why):
        ask(question)


@pytest.mark.parametrize("wait", [signal.pause, lambda: [None for _ in iter(int, 1)]])
def test_a_copy_that_does_not_end_is_ended(wait: Callable[[], Any]) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()  # servers of other tests, perhaps
    with pytest.raises(Unanswered, match=r"longer than 0\.2 s"):
        ask(wait, timeout=0.2)
    assert children.read_text() == before


def test_a_long_answer_arrives_whole() -> None:
    assert ask(lambda: "é" * 300_000) == "é" * 300_000


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Signals that a program has handled, and how it handles them."""
    seen: list[int] = []
    numbers = (signal.SIGCHLD, signal.SIGTERM)
    before = [signal.signal(number, lambda n, _: seen.append(n)) for number in numbers]
    yield seen
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_program_that_reaps_its_children_is_not_confused() -> None:
    def reap(*_: object) -> None:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    return
            except ChildProcessError:
                return

    for handler in (reap, signal.SIG_IGN):
        before = signal.signal(signal.SIGCHLD, handler)
        try:
            assert ask(lambda: "here") == "here"
            with pytest.raises(Unanswered, match="ended its process"):
                ask(lambda: os._exit(1))
        finally:
            signal.signal(signal.SIGCHLD, before)


def test_handlers_of_signals_are_the_programs_alone(handled: list[int]) -> None:
    with pytest.raises(Unanswered, match="status -15"):
        ask(lambda: signal.raise_signal(signal.SIGTERM))
    assert signal.SIGTERM not in handled
    signal.raise_signal(signal.SIGTERM)
    assert signal.SIGTERM in handled
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_crash_is_not_left_to_handlers_that_a_library_has_set() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    # A handler in C of which Python knows nothing, and which never comes back.
    before = libc.signal(signal.SIGUSR2, ctypes.cast(libc.pause, ctypes.c_void_p))
    try:
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
        with pytest.raises(Unanswered, match=f"status -{signal.SIGUSR2.value}"):
            ask(lambda: signal.raise_signal(signal.SIGUSR2))
    finally:
        libc.signal(signal.SIGUSR2, before)


def test_files_and_pipes_lead_nowhere(tmp_path: Path) -> None:
    written, read = tmp_path / "written", tmp_path / "read"
    read.write_text("one\ntwo\n")
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    theirs.setblocking(False)
    with written.open("w") as log, read.open() as lines, ours, theirs:
        lines.read(4)
        descriptor = lines.fileno()
        os.lseek(descriptor, 4, os.SEEK_SET)

        def disturb() -> bytes:
            log.write("from the copy")
            log.flush()
            os.write(writing, b"from the copy")
            with pytest.raises(OSError, match="socket"):
                ours.send(b"from the copy")
            return os.read(descriptor, 100)

        assert ask(disturb) == str(b"two\n")
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 4
        assert written.read_text() == ""
        nothings: list[Callable[[], bytes]] = [lambda: os.read(reading, 1), lambda: theirs.recv(1)]
        for nothing in nothings:
            with pytest.raises(BlockingIOError):
                nothing()
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: (folder / "new").write_text(""),
        lambda folder: (folder / "there").unlink(),
        lambda folder: (folder / "there").rename(folder / "moved"),
        lambda folder: (folder / "new").mkdir(),
        lambda folder: subprocess.run(["touch", str(folder / "new")], check=True),
        lambda folder: os.kill(os.getppid(), signal.SIGKILL),
        lambda folder: os.fork(),
        lambda folder: socket.socket(socket.AF_UNIX).bind(str(folder / "new")),
    ],
)
def test_what_would_leave_a_trace_is_refused(act: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(Unanswered, match="PermissionError"):
        ask(lambda: act(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_shared_memory_cannot_be_written() -> None:
    shared = mmap.mmap(-1, 16)
    shared[:] = b"0123456789abcdef"
    assert ask(lambda: shared[:4]) == str(b"0123")
    with pytest.raises(Unanswered, match="ended its process"):
        ask(lambda: shared.write(b"from the copy"))
    assert shared[:] == b"0123456789abcdef"


def test_the_copy_is_silent_and_ends_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = """
import atexit, gc, sys, weakref
from pathlib import Path
from unbroken.capture.fork import ask_copy
atexit.register(lambda: print("atexit"))
class Loud:
    def __del__(self):
        print("deleted")
loud = Loud()
loud.itself = loud
sys.stdout.write("waiting to be flushed. ")
def question():
    print("from the copy", flush=True)
    print("from the copy", file=sys.stderr, flush=True)
    return "quiet"
print(ask_copy(question, timeout=120))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["waiting to be flushed. quiet", "atexit"]
    assert done.stdout.count("deleted") == 1
    assert done.stderr == ""


def test_threads_of_the_process_go_on() -> None:
    stop, ticks = threading.Event(), [0]

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            stop.wait(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert ask(threading.active_count) == "1"
        before = ticks[0]
        while ticks[0] == before:
            stop.wait(0.001)
    finally:
        stop.set()
        thread.join()


def test_a_copy_does_not_outlive_its_process_for_long() -> None:
    script = """
import os, signal
from unbroken.capture import fork
fork.GRACE = 0.1
real = fork._fork
def killed_at_once():
    child = real()
    if child:
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return child
fork._fork = killed_at_once
fork.ask_copy(lambda: signal.pause() or "", timeout=0.1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    status = Path(f"/proc/{int(done.stdout)}/stat")
    while status.exists() and " Z " not in status.read_text():  # whoever adopts it may take its time
        pass


def test_nothing_of_ours_stays() -> None:
    descriptors, collecting = os.listdir("/proc/self/fd"), gc.isenabled()
    for _ in range(3):
        ask(lambda: "")
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert gc.isenabled() is collecting

from __future__ import annotations

import subprocess
import sys

import pytest


def said(script: str) -> list[str]:
    """Return the lines that a script prints, which begins in a process with one thread."""
    done = subprocess.run(
        [sys.executable, "-c", f"from unbroken.capture.second_process import *\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_answers_and_knows_nothing_of_what_came_after_it() -> None:
    lines = said("""
known = [1]
second = SecondProcess(lambda question: question + str(known).encode())
known.append(2)
print(second.ask(b"a").decode(), second.ask(b"b" * 3).decode(), known)
second.close()
""")
    assert lines == ["a[1] bbb[1] [1, 2]"]


@pytest.mark.parametrize("end", ["os._exit(3)", "1 / 0", "os.kill(os.getpid(), 9)"])
def test_a_copy_that_ends_has_no_answer_and_harms_nobody(end: str) -> None:
    lines = said(f"""
import os
second = SecondProcess(lambda question: {end})
for question in (b"one", b"two"):
    try:
        second.ask(question)
    except NoAnswer:
        print("no answer")
second.close()
""")
    assert lines == ["no answer", "no answer"]


def test_questions_larger_than_a_pipe_arrive_whole() -> None:
    lines = said("""
second = SecondProcess(lambda question: question[::-1])
large = bytes(range(256)) * 40_000
print(second.ask(large) == large[::-1])
second.close()
""")
    assert lines == ["True"]


def test_a_child_that_lives_on_does_not_keep_the_copy() -> None:
    lines = said("""
import os, signal
second = SecondProcess(lambda question: question)
child = os.fork()
if child == 0:
    signal.pause()
second.close()
os.kill(child, signal.SIGKILL)
print("closed")
""")
    assert lines == ["closed"]

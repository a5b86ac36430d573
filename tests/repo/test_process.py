from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from unbroken.repo.process import Process, current, identify


def test_this_process_is_alive_and_stable() -> None:
    assert current() == current()
    assert current().is_alive() is True


def test_a_process_that_ended_is_dead() -> None:
    script = (
        "from unbroken.repo.process import current; p = current();"
        " print(p.pid, p.start, p.boot_id, p.host, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    pid, start, boot, host = child.stdout.readline().split()
    process = Process(int(pid), start, boot, host)
    assert process.is_alive() is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_alive() is False, "a zombie holds nothing"
    child.communicate()
    assert process.is_alive() is False


@pytest.mark.parametrize("system", ["with pidfd", "without"])
def test_the_end_of_a_process_that_is_no_child_is_waited_for(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "without":
        monkeypatch.delattr(os, "pidfd_open")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    assert not process.wait(0.0)
    child.kill()
    assert process.wait(60.0), "nobody has taken note of it yet"
    child.communicate()
    assert process.wait(0.0)
    assert replace(current(), start="1").wait(0.0), "the number is another's by now"


def test_the_same_number_with_another_start_is_another_process() -> None:
    assert replace(current(), start="1").is_alive() is False


def test_the_same_number_after_a_reboot_is_another_process() -> None:
    assert replace(current(), boot_id="another boot").is_alive() is False


def test_nothing_is_claimed_about_another_host() -> None:
    assert replace(current(), host="elsewhere").is_alive() is None


def test_nothing_is_claimed_without_a_start_time() -> None:
    assert replace(current(), start="").is_alive() is None


def test_it_names_itself() -> None:
    assert str(Process(7, "1", "b", "node3")) == "process 7 on node3"

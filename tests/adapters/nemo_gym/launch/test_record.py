"""Ports stay, and old processes are ended: those, and no others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.launch.record import Record, free_port, is_free
from unbroken.repo.process import identify

SLEEPS = [sys.executable, "-c", "import sys, time; print(1, flush=True); time.sleep(600)"]
FORKS = [
    sys.executable,
    "-c",
    "import os, time\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\n    time.sleep(600)",
]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    yield children
    for child in children:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def start(
    command: list[str], started: list[subprocess.Popen[str]], directory: Path
) -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "UNBROKEN_GYM_DIR": str(directory)},
    )  # fmt: skip
    started.append(child)
    assert child.stdout is not None
    return child, child.stdout.readline()


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record(tmp_path / "servers.json", {"res": 10007}, {"res": identify(os.getpid())})
    record.write()
    assert Record.read(tmp_path / "servers.json") == record


@pytest.mark.parametrize("content", [b"", b"[]", b'{"ports": 1, "processes": {}}', b'{"ports": {}}'])
def test_a_damaged_one_is_a_missing_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "servers.json"
    path.write_bytes(content)
    assert Record.read(path) == Record(path)


def test_an_old_process_is_ended(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    child, _ = start(SLEEPS, started, tmp_path)
    record = Record(tmp_path / "servers.json", {}, {"res": identify(child.pid)})
    assert record.end_stale(tmp_path) == ["res"]
    assert child.wait() == -signal.SIGKILL
    assert record.processes == {}


def test_a_process_that_only_has_the_number_is_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    child, _ = start(SLEEPS, started, tmp_path)
    record = Record(tmp_path / "servers.json", {}, {"res": replace(identify(child.pid), start="1")})
    assert record.end_stale(tmp_path) == []
    assert child.poll() is None


def test_what_an_old_process_had_started_is_ended(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    child, line = start(FORKS, started, tmp_path)
    leader, orphan = identify(child.pid), identify(int(line))
    child.wait()
    record = Record(tmp_path / "servers.json", {}, {"res": leader})
    elsewhere = Record(tmp_path / "servers.json", {}, {"res": leader})
    assert elsewhere.end_stale(tmp_path / "other") == []
    assert orphan.is_alive()
    assert record.end_stale(tmp_path) == ["res"]
    assert orphan.wait(10)


def test_a_port_that_somebody_listens_at_is_not_free() -> None:
    port = free_port("127.0.0.1", [])
    assert is_free("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert not is_free("127.0.0.1", port)

"""Terminals, pipes and readers that go away."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "unbroken"]


def test_a_reader_that_goes_away_is_no_error(trained: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "ls", "runs"], cwd=trained, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_terminal_gets_a_table_with_lines(trained: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([*COMMAND, "verify", "runs"], cwd=trained, stdout=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed: how a terminal ends on Linux
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert process.wait() == 0
    assert "─" in seen.decode()
    assert "\x1b[32mintact" in seen.decode()


def test_a_full_standard_output_is_told(trained: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "ls", "runs"], cwd=trained, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr

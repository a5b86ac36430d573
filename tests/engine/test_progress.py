"""The progress file holds two numbers, and only the trainer keeps it open."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from unbroken.engine.progress import Progress
from unbroken.errors import ConfigError


def test_it_is_empty_until_something_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_bytes(b"of another process")
    progress = Progress(str(path))
    assert path.read_bytes() == b""
    progress.step(7)
    assert struct.unpack("<QQQ", path.read_bytes()) == (7, 0, 0)
    progress.committed(5)
    progress.step(8)
    assert struct.unpack("<QQQ", path.read_bytes()) == (8, 5, 0)


def test_without_a_path_nothing_happens() -> None:
    progress = Progress(None)
    progress.step(1)
    progress.committed(1)
    progress.close()


def test_a_closed_file_takes_no_more_reports(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path / "progress"))
    progress.step(3)
    progress.close()
    progress.step(4)
    assert struct.unpack("<QQQ", (tmp_path / "progress").read_bytes()) == (3, 0, 0)


def test_a_forked_child_does_not_hold_it_open(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path / "progress"))
    child = os.fork()
    if child == 0:
        os._exit(0 if progress._fd == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    progress.step(1)
    assert (tmp_path / "progress").stat().st_size == 24


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="UNBROKEN_PROGRESS"):
        Progress(str(tmp_path / "missing" / "progress"))

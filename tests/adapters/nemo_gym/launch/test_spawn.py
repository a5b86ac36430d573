"""Processes that say nothing are not waited for, and what servers print is their owner's."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.launch.resolve import resolve
from unbroken.adapters.nemo_gym.launch.spawn import Direct, Preloaded
from unbroken.errors import ConfigError, ServerMissing


@pytest.fixture
def silent(tmp_path: Path) -> str:
    """Return the path of a Python that does nothing, for ever."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 3600\n")
    script.chmod(0o755)
    return str(script)


def test_a_forking_process_that_does_not_answer_is_ended(silent: str, tmp_path: Path) -> None:
    starter = Preloaded(silent, environment=os.environ, log=tmp_path / "log", within=0.2)
    try:
        with pytest.raises(ServerMissing, match=r"did not answer within 0\.2 s"):
            starter.start(["res"], project=tmp_path, environment={}, log=tmp_path / "res.log")
        with pytest.raises(ServerMissing, match="is gone"):
            starter.start(["res"], project=tmp_path, environment={}, log=tmp_path / "res.log")
    finally:
        starter.close()


def test_a_python_that_does_not_read_the_configuration_is_told(silent: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did not read the configuration within 0\.2 s"):
        resolve({}, python=silent, project=tmp_path, environment=os.environ, within=0.2)


def test_what_a_server_prints_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        starter = Direct(sys.executable)
        process = starter.start(
            ["--help"], project=tmp_path, environment=os.environ, log=tmp_path / "res.log"
        )
        starter.forget(process)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "res.log").stat().st_mode) == 0o600
    assert "usage" in (tmp_path / "res.log").read_text()

"""What a supervisor decides without a server."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.launch.supervisor import Servers, pause_before
from unbroken.errors import ConfigError, ServerMissing

CONFIG = {"res": {"resources_servers": {"x": {"entrypoint": "app.py"}}}}


def test_pauses_grow_up_to_half_a_minute() -> None:
    assert [pause_before(deaths) for deaths in range(1, 9)] == [0, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("options", [{"restarts": -1}, {"window": 0.0}, {"start_timeout": -1.0}])
def test_numbers_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Servers(CONFIG, directory=tmp_path, **options)  # type: ignore[arg-type]


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        Servers(CONFIG, directory=tmp_path / "file" / "gym").start()


def test_servers_that_do_not_run_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no server 'other'"):
        Servers(CONFIG, directory=tmp_path).stop("other")
    with pytest.raises(ConfigError, match="not running"):
        Servers(CONFIG, directory=tmp_path).stop()


def test_a_python_that_is_not_there_is_told_and_the_directory_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        servers = Servers(CONFIG, directory=tmp_path, python=str(tmp_path / "python"))
        with pytest.raises(ConfigError, match="No such file"):
            servers.start()
    with pytest.raises(ConfigError, match="No such file"):
        Servers("a.yaml", directory=tmp_path, python=str(tmp_path / "python")).start()


def test_the_directory_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(ConfigError):
            Servers(CONFIG, directory=tmp_path / "a" / "gym", python=str(tmp_path / "python")).start()
    finally:
        os.umask(before)
    made = tmp_path / "a" / "gym"
    for path in (made, made / ".launch"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (made / ".launch").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def python_that(path: Path, script: str) -> str:
    """Return the path of a "Python" that runs this shell script instead of a server."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_one_that_is_killed_before_it_has_answered_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel kills whoever needs memory at the start: that is no fault of its own. Its second end is one."""
    second = tmp_path / "second"
    script = f"test -e {second} && {{ echo at last; exit 3; }}; touch {second}; echo at first; kill -9 $$"
    python = python_that(tmp_path / "python", script)
    servers = Servers(CONFIG, directory=tmp_path / "gym", python=python, restarts=1)
    with pytest.raises(ServerMissing, match=r"res died 2 times .*\(exit code 3\)") as caught:
        servers.start()
    assert "res died (SIGKILL); it is started again" in capsys.readouterr().err
    assert "at last" in str(caught.value)
    assert "at first" not in str(caught.value)


def test_one_that_ends_by_itself_before_it_has_answered_ends_all(tmp_path: Path) -> None:
    python = python_that(tmp_path / "python", "echo no; exit 3")
    for _ in range(2):
        servers = Servers(CONFIG, directory=tmp_path / "gym", python=python)
        with pytest.raises(ServerMissing, match=r"res ended before it answered \(exit code 3\)") as caught:
            servers.start()
        assert str(caught.value).count("    no") == 1  # what it has printed since this start
        assert servers.restarted == {}

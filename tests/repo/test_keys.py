from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.repo.keys import KEY_BYTES, key_file, signing_key


def test_the_variable_wins_and_leaves_no_file(tmp_path: Path) -> None:
    environ = {"UNBROKEN_KEY": "k" * 32, "XDG_CONFIG_HOME": str(tmp_path)}
    assert signing_key(create=True, environ=environ) == b"k" * 32
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "short"])
def test_a_short_variable_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="shorter than 16"):
        signing_key(create=False, environ={"UNBROKEN_KEY": value})


def test_a_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert signing_key(create=False, environ=environ) is None
    key = signing_key(create=True, environ=environ)
    assert key is not None
    assert len(key) == KEY_BYTES
    assert signing_key(create=True, environ=environ) == key
    assert signing_key(create=False, environ=environ) == key
    path = key_file(environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["key"], "no temporary file is left"


def test_the_home_directory_is_used_without_a_configuration_directory(tmp_path: Path) -> None:
    assert key_file({"HOME": str(tmp_path)}) == tmp_path / ".config" / "unbroken" / "key"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    signing_key(create=True, environ=environ)
    key_file(environ).chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        signing_key(create=False, environ=environ)


@pytest.mark.parametrize("content", [b"", b"zz" * 32, b"ab" * 31, b"\xff" * 64])
def test_a_damaged_key_is_refused(tmp_path: Path, content: bytes) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = key_file(environ)
    path.parent.mkdir()
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        signing_key(create=True, environ=environ)


def test_an_unusable_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "unbroken").write_text("a file where a directory should be")
    with pytest.raises(ConfigError, match="cannot be used"):
        signing_key(create=True, environ={"XDG_CONFIG_HOME": str(tmp_path)})

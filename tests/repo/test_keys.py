from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.repo import keys
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


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_a_key_from_a_file_is_the_same_key_in_the_variable(home: dict[str, str]) -> None:
    key = signing_key(create=True, environ=home)
    assert key is not None
    assert signing_key(create=False, environ={"UNBROKEN_KEY": key.hex()}) == key


def test_a_key_that_was_replaced_is_held_and_signs_nothing(home: dict[str, str]) -> None:
    first = signing_key(create=True, environ=home)
    keys.rotate(home)
    second = signing_key(create=False, environ=home)
    keys.rotate(home)
    held = list(keys.held_keys(home))
    assert held[0].key == signing_key(create=False, environ=home)
    assert {key.key for key in held[1:]} == {first, second}
    assert [key.retired for key in held] == [False, True, True]
    folder = key_file(home).parent
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert set(modes.values()) == {0o600, 0o700}
    assert not [path for path in modes if path.name.startswith(".")], "no temporary file is left"


def test_a_key_that_is_forgotten_is_gone(home: dict[str, str]) -> None:
    signing_key(create=True, environ=home)
    _, old = keys.rotate(home)
    keys.forget(old.name, home)
    assert [key.retired for key in keys.held_keys(home)] == [False]
    for name in (old.name, "../key", ""):
        with pytest.raises(ConfigError, match="retired"):
            keys.forget(name, home)
    assert key_file(home).is_file()


def test_a_key_that_the_variable_gives_is_not_replaced_in_a_file(home: dict[str, str]) -> None:
    signing_key(create=True, environ=home)
    before = key_file(home).read_bytes()
    with pytest.raises(ConfigError, match="UNBROKEN_KEY gives the key"):
        keys.rotate({**home, "UNBROKEN_KEY": "k" * 32})
    assert key_file(home).read_bytes() == before


def test_a_key_is_made_only_where_there_is_none(home: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no key yet"):
        keys.rotate(home)
    made = keys.make(home)
    with pytest.raises(ConfigError, match=made.name):
        keys.make(home)


def test_a_key_is_not_shown_where_things_are_printed(home: dict[str, str]) -> None:
    made = keys.make(home)
    assert made.name in repr(made)
    assert made.key.hex() not in repr(made)
    assert repr(made.key) not in repr(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_that_another_user_can_change_is_refused(home: dict[str, str]) -> None:
    keys.make(home)
    os.chown(key_file(home), 65534, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        signing_key(create=False, environ=home)


def test_a_pipe_in_the_place_of_a_key_is_not_waited_for(home: dict[str, str]) -> None:
    key_file(home).parent.mkdir()
    os.mkfifo(key_file(home), 0o600)
    with pytest.raises(ConfigError, match="damaged"):
        signing_key(create=False, environ=home)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_the_modes_of_keys_hold_under_any_umask(home: dict[str, str], umask: int) -> None:
    key_file(home).parent.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        keys.make(home)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key_file(home).stat().st_mode) == 0o600

"""What a server is told, and what is refused before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym import keys
from unbroken.adapters.nemo_gym.options import Wishes, resolve
from unbroken.errors import ConfigError


def test_the_directory_is_that_given_or_one_of_the_servers_name() -> None:
    root = {"UNBROKEN_GYM_DIR": "/logs"}
    assert resolve(Wishes(directory="/own"), name="res", environment=root).directory == Path("/own")
    assert resolve(Wishes(), name="res", environment=root).directory == Path("/logs/res")
    for name in ("a/b", "..", "../x", "/etc"):
        directory = resolve(Wishes(), name=name, environment=root).directory
        assert directory.parent == Path("/logs")
        assert directory.name not in ("..", ".")
    for name, environment in (("res", {}), ("", root)):
        with pytest.raises(ConfigError) as caught:
            resolve(Wishes(), name=name, environment=environment)
        assert "`directory`" in caught.value.hint


@pytest.mark.parametrize(
    ("wishes", "says"),
    [({"exclude": "cache"}, "is a text"), ({"capability": "magic"}, "is unknown")],
)
def test_what_no_server_could_use(wishes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(Wishes(directory="/own", **wishes), name="res", environment={})


def test_open_or_closed() -> None:
    def start(value: str) -> str:
        return resolve(Wishes(directory="/own"), name="res", environment={"UNBROKEN_GYM_START": value}).start

    assert (start(""), start("open"), start("closed")) == ("open", "open", "closed")
    with pytest.raises(ConfigError, match="neither"):
        start("ajar")


def test_seconds_to_wait_for_a_server() -> None:
    def patience(value: str) -> float:
        environment = {"UNBROKEN_GYM_PATIENCE": value}
        return resolve(Wishes(directory="/own"), name="res", environment=environment).patience

    assert (patience(""), patience("7.5")) == (600.0, 7.5)
    for value in ("soon", "0", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match="no number of seconds"):
            patience(value)


def test_secrets_are_the_users_and_are_not_shown() -> None:
    options = resolve(Wishes(directory="/own", exclude={"b", "a"}), name="res", environment={})
    assert (options.key, options.token) == (keys.log_key(), keys.control_token())
    assert options.exclude == ("a", "b")
    assert options.token not in repr(options)

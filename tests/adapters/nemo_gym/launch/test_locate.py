"""Which class a server's directory serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.launch.locate import locate, served_class
from unbroken.errors import ConfigError

PLAIN = "class A: ...\n\nif __name__ == '__main__':\n    A.run_webserver()\n"
WRAPPED = "from x import A, checkpointed\n\nif __name__ == '__main__':\n    checkpointed(A, log_states=True).run_webserver()\n"
WORKERS = "class A: ...\nif 1:\n    A.run_webserver()\nelif 2:\n    app = A.run_webserver()\n"


def server(root: Path, source: str = PLAIN, *, name: str = "mine") -> Path:
    directory = root / "resources_servers" / name
    directory.mkdir(parents=True)
    (directory / "app.py").write_text(source)
    return directory


@pytest.mark.parametrize("source", [PLAIN, WRAPPED, WORKERS])
def test_the_class_is_read_from_the_source(tmp_path: Path, source: str) -> None:
    assert served_class(server(tmp_path, source) / "app.py") == "A"


@pytest.mark.parametrize("source", ["", "A.run_webserver()\nB.run_webserver()\n"])
def test_no_class_is_guessed(tmp_path: Path, source: str) -> None:
    assert served_class(server(tmp_path, source) / "app.py") == ""


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        served_class(server(tmp_path, "class") / "app.py")


def test_the_users_directory_wins(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "project", tmp_path / "installed"
    ours = server(mine)
    server(theirs, "B.run_webserver()")
    other = server(theirs, "C.run_webserver()", name="other")
    found = locate("resources_servers", "mine", "app.py", project=mine, installed=theirs)
    assert (found.directory, found.module, found.class_name) == (ours, "resources_servers.mine.app", "A")
    found = locate("resources_servers", "other", "app.py", project=mine, installed=theirs)
    assert (found.directory, found.class_name) == (other, "C")


def test_a_class_can_be_named(tmp_path: Path) -> None:
    directory = server(tmp_path)
    found = locate(
        "resources_servers", "mine", "app.py", project=tmp_path, installed=tmp_path, wanted="m.n:X"
    )
    assert (found.directory, found.module, found.class_name) == (directory, "m.n", "X")
    found = locate("resources_servers", "mine", "app.py", project=tmp_path, installed=tmp_path, wanted="X")
    assert (found.module, found.class_name) == ("resources_servers.mine.app", "X")


def test_a_missing_directory_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        locate("resources_servers", "mine", "app.py", project=tmp_path, installed=tmp_path)


def test_an_entrypoint_that_has_no_name_needs_a_class(tmp_path: Path) -> None:
    directory = server(tmp_path)
    (directory / "my-app.py").write_text(PLAIN)
    with pytest.raises(ConfigError, match="module:Class"):
        locate("resources_servers", "mine", "my-app.py", project=tmp_path, installed=tmp_path)


def test_ray_is_seen_in_the_files_of_a_server(tmp_path: Path) -> None:
    directory = server(tmp_path)
    found = locate("resources_servers", "mine", "app.py", project=tmp_path, installed=tmp_path)
    assert not found.uses_ray
    (directory / "work.py").write_text("@ray.remote\ndef f(): ...\n")
    assert found.uses_ray

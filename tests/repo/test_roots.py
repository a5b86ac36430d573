"""What people give as the place of their runs: refused by the word they used, before a file is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository, jobs
from unbroken.repo.roots import check_directory, directory_of


@pytest.mark.parametrize(
    "root", ["", 5, None, b"runs", "s3://bucket/x", "a\0b", "~nobody-of-this-name/x", "x" * 256]
)
def test_what_can_be_no_directory_is_refused_by_the_callers_word(root: object) -> None:
    with pytest.raises(ConfigError, match="save_path") as caught:
        directory_of(root, name="save_path")
    assert caught.value.hint
    assert len(str(caught.value)) < 200


def test_object_stores_are_named_as_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="object stores are not supported yet"):
        directory_of("s3://bucket/runs")


def test_home_is_resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert directory_of("~/runs") == tmp_path / "runs"


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "below"):
        with pytest.raises(ConfigError, match="symbolic links"):
            check_directory(path)
        with pytest.raises(ConfigError, match="symbolic links"):
            jobs(path)


def test_where_no_directory_can_be_made_another_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="/proc/runs cannot be made") as caught:
        Repository.open("/proc/runs", "job", create=True)
    assert "another directory" in caught.value.hint


@pytest.mark.parametrize("name", ["there", "not there", "file/below"])
def test_what_is_a_directory_or_may_become_one_is_taken(name: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    assert check_directory(tmp_path / name) == tmp_path / name

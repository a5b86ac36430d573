"""What is put in the place of something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unbroken.store import exchange
from unbroken.store.exchange import take_place


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


@pytest.fixture(params=["in one step", "in two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the step of this system, and as on one that has none."""
    if request.param == "in two steps":
        monkeypatch.setattr(exchange, "_call", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_folder_takes_the_place_of_a_folder_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder(tmp_path / "place", "old")
    (tmp_path / "place/more").mkdir()
    take_place(folder(tmp_path / ".beside", "new"), tmp_path / "place")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["place", "place/file"]
    assert (tmp_path / "place/file").read_text() == "new"


@pytest.mark.usefixtures("way")
def test_a_folder_takes_the_place_of_a_file_or_a_link_and_leaves_alone_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("old")
    take_place(folder(tmp_path / ".beside", "new"), tmp_path / "place")
    assert (tmp_path / "place/file").read_text() == "new"
    (tmp_path / "link").symlink_to(folder(tmp_path / "target", "kept"))
    take_place(tmp_path / "place", tmp_path / "link")
    assert (tmp_path / "link/file").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]
    assert (tmp_path / "target/file").read_text() == "kept"


@pytest.mark.usefixtures("way")
def test_what_cannot_be_put_there_leaves_what_is_there(tmp_path: Path) -> None:
    folder(tmp_path / "place", "old")
    with pytest.raises(FileNotFoundError):
        take_place(tmp_path / "missing", tmp_path / "place")
    assert (tmp_path / "place/file").read_text() == "old"
    assert os.listdir(tmp_path) == ["place"]


def test_where_nothing_stands_it_is_renamed(tmp_path: Path) -> None:
    take_place(folder(tmp_path / ".beside", "new"), tmp_path / "place")
    assert (tmp_path / "place/file").read_text() == "new"

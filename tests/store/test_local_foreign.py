"""The local store and what is none of its objects: links, pipes, sockets, directories, foreign files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unbroken.errors import ObjectBlocked, ObjectMissing, StoreError
from unbroken.store.base import append, exists, taken
from unbroken.store.local import LocalStore
from unbroken.store.publish import TEMPORARY

WRITES = ["put", "put_if_absent"]


def leftovers(root: Path) -> list[Path]:
    return sorted(root.rglob(f"{TEMPORARY}*"))


@pytest.mark.parametrize("method", WRITES)
def test_a_linked_directory_leads_nowhere(tmp_path: Path, method: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "k").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "d").symlink_to(outside)
    store = LocalStore(root)
    with pytest.raises(ObjectMissing, match="symbolic link"):
        store.get("d/k")
    with pytest.raises(StoreError, match="symbolic link"):
        getattr(store, method)("d/new", b"x")
    store.delete("d/k")
    assert store.list() == []
    assert store.children() == []
    assert [path.name for path in outside.iterdir()] == ["k"]


def test_a_linked_object_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "k").symlink_to(outside)
    store = LocalStore(root)
    with pytest.raises(StoreError, match="symbolic link"):
        store.get("k")
    assert store.put_if_absent("k", b"x") is False
    store.put("k", b"mine")
    assert store.get("k") == b"mine"
    assert outside.read_bytes() == b"secret"


def test_a_pipe_does_not_hang_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "k")
    store = LocalStore(tmp_path)
    with pytest.raises(StoreError, match="regular"):
        store.get("k")
    assert store.list() == []


def test_a_directory_in_the_place_of_an_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("d/k", b"x")
    with pytest.raises(StoreError, match="directory"):
        store.put("d", b"x")
    with pytest.raises(StoreError, match="is a file"):
        store.put("d/k/below", b"x")
    assert store.put_if_absent("d", b"x") is False
    assert store.list() == ["d/k"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "pipe with a reader", "socket", "directory"])
def test_what_is_no_object_is_named_replaced_and_no_line_goes_into_it(tmp_path: Path, kind: str) -> None:
    outside, store = tmp_path / "outside", LocalStore(tmp_path / "root")
    outside.write_bytes(b"secret")
    store.put("beside", b"")
    place = tmp_path / "root" / "k"
    writes: list[Callable[[], object]] = [
        lambda: store.put("k", b"line\n"),
        lambda: store.note("k", b"line\n"),
        lambda: append(store, "k", b"line\n"),
    ]
    for write in writes:
        reader = -1
        if kind == "link":
            place.symlink_to(outside)
        elif kind == "directory":
            place.mkdir()
        elif kind == "socket":
            os.mknod(place, stat.S_IFSOCK | 0o600)
        else:
            os.mkfifo(place)
            reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK) if "reader" in kind else -1
        with pytest.raises(ObjectBlocked, match=kind.partition(" ")[0]) as caught:
            store.get("k")
        assert caught.value.key == "k"
        assert exists(store, "k")
        assert taken(store, "") == ["beside", "k"]
        assert store.put_if_absent("k", b"x") is False
        write()
        assert store.get("k").rstrip(b" ") == b"line\n"
        if reader >= 0:
            assert os.read(reader, 10) == b""
            os.close(reader)
        store.delete("k")
    assert outside.read_bytes() == b"secret"
    assert leftovers(tmp_path) == []


def test_foreign_files_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("d/k", b"x")
    for name in (".nfs000123", ".hidden", ".tmp-abc", "back\\slash", "new\nline"):
        (tmp_path / "d" / name).write_bytes(b"")
    (tmp_path / "d" / os.fsdecode(b"\xff")).write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "k").write_bytes(b"")
    assert store.list() == ["d/k"]
    assert store.children("d") == ["k"]
    assert store.children() == ["d"]

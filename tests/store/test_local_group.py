"""The local store writes and deletes several objects: order, errors, and a crash at every call."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from unbroken.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from unbroken.format.buffers import Content
from unbroken.store.base import SupportsDeleteAll, SupportsPutAll, SupportsReadInto
from unbroken.store.local import LocalStore
from unbroken.store.publish import TEMPORARY
from unbroken.testing.faulty_store import Stopped
from unbroken.testing.faulty_system import FailingSystem, RecordingSystem, StoppingSystem, fail

OBJECTS = {
    "packs/1": b"pack" * 1000,
    "packs/1.idx": b"index",
    "steps/1/a.json": b"{}",
    "steps/1/manifest.json": b"[]",
}


def items() -> Iterator[tuple[str, Content]]:
    for key, content in OBJECTS.items():
        yield key, (content[at : at + 999] for at in range(0, len(content), 999))


def leftovers(root: Path) -> list[Path]:
    return sorted(root.rglob(f"{TEMPORARY}*"))


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_abilities(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert isinstance(store, SupportsPutAll)
    assert isinstance(store, SupportsDeleteAll)
    assert isinstance(store, SupportsReadInto)


def test_contents_then_new_directories_then_names_then_directories(tmp_path: Path) -> None:
    system = RecordingSystem()
    tokens = map(str, count())
    store = LocalStore(tmp_path, system=system, token=lambda: next(tokens))
    store.put("packs/0", b"")
    system.calls.clear()
    store.put_all(items())
    packs, steps = tmp_path / "packs", tmp_path / "steps"
    temporary = [packs / ".tmp-1", packs / ".tmp-2", steps / "1/.tmp-3", steps / "1/.tmp-4"]
    calls = [call for call in system.calls if call[0] != "pwrite"]
    assert calls[:2] == [("mkdir", str(steps)), ("mkdir", str(steps / "1"))]
    # These wait for the disk together, in whatever order.
    assert sorted(calls[2:12]) == sorted(
        [
            *((call, str(path)) for path in temporary for call in ("fsync", "close")),
            ("fsync", str(tmp_path)),
            ("fsync", str(steps)),
        ]
    )
    assert calls[12:16] == [("replace", str(tmp_path / key)) for key in OBJECTS]
    assert sorted(calls[16:]) == [("fsync", str(packs)), ("fsync", str(steps / "1"))]


def test_a_large_group_does_not_run_out_of_descriptors(tmp_path: Path) -> None:
    before = opened()
    most: list[int] = []

    def content(number: int) -> Iterator[bytes]:
        most.append(opened())
        yield b"%d" % number

    store = LocalStore(tmp_path)
    store.put_all((f"d/{number:03d}", content(number)) for number in range(200))
    assert store.get("d/199") == b"199"
    assert max(most) - before < 80
    assert opened() == before


def test_a_crash_at_every_call_leaves_the_first_names_with_whole_contents(tmp_path: Path) -> None:
    counting = StoppingSystem()
    LocalStore(tmp_path / "whole", system=counting).put_all(items())
    keys = list(OBJECTS)
    found: list[int] = []
    for at in range(counting.calls):
        root = tmp_path / str(at)
        system = StoppingSystem(at)
        with pytest.raises(Stopped):
            LocalStore(root, system=system).put_all(items())
        assert system.stopped
        store = LocalStore(root)
        assert store.list() == sorted(keys[: len(store.list())])
        assert all(store.get(key) == OBJECTS[key] for key in store.list())
        found.append(len(store.list()))
    assert found == sorted(found)
    assert set(found) == {0, 1, 2, 3, 4}


def test_no_name_is_given_before_every_content_is_durable(tmp_path: Path) -> None:
    """Checked at the moment of each rename: the file that gets a name, and those after it, are synced."""
    synced: list[str] = []
    named: list[int] = []

    class Watching(RecordingSystem):
        def fsync(self, descriptor: int) -> None:
            super().fsync(descriptor)
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

        def replace(self, source: str, target: str, *, at: int) -> None:
            named.append(sum(TEMPORARY in path for path in synced))
            super().replace(source, target, at=at)

    LocalStore(tmp_path, system=Watching()).put_all(items())
    assert named == [4, 4, 4, 4]


def test_the_kernel_begins_with_each_file_before_the_first_wait(tmp_path: Path) -> None:
    begun: list[int] = []

    class Watching(RecordingSystem):
        def start_flush(self, descriptor: int) -> None:
            super().start_flush(descriptor)
            begun.append(len(self.calls))

    system = Watching()
    store = LocalStore(tmp_path, system=system)
    store.put("k", b"")
    begun.clear()
    system.calls.clear()
    store.put_all(items())
    assert len(begun) == len(OBJECTS)
    assert "fsync" not in [call for call, _ in system.calls[: begun[-1]]]


@pytest.mark.parametrize("call", ["create", "pwrite", "fsync", "close"])
@pytest.mark.parametrize("nth", range(4))
@pytest.mark.parametrize(
    ("code", "expected"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreUnavailable), (errno.EROFS, StoreDenied)]
)  # fmt: skip
def test_a_content_that_cannot_be_written_leaves_no_trace_of_any(
    tmp_path: Path, call: str, nth: int, code: int, expected: type[StoreError]
) -> None:
    tokens = map(str, count())
    LocalStore(tmp_path).put("packs/1", b"old")
    before = opened()
    system = FailingSystem(fail(call, code, path=f"{TEMPORARY}{nth}"))
    store = LocalStore(tmp_path, system=system, token=lambda: next(tokens))
    with pytest.raises(expected) as caught:
        store.put_all(items())
    assert caught.value.key == list(OBJECTS)[nth]
    assert store.list() == ["packs/1"]
    assert store.get("packs/1") == b"old"
    assert leftovers(tmp_path) == []
    assert opened() == before


def test_of_several_errors_the_first_objects_is_reported(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("fsync", errno.EIO, path=TEMPORARY)))
    with pytest.raises(StoreUnavailable) as caught:
        store.put_all(items())
    assert caught.value.key == "packs/1"
    assert store.list() == []
    assert leftovers(tmp_path) == []


def test_where_no_thread_can_be_started_all_is_synced_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    system = RecordingSystem()
    LocalStore(tmp_path, system=system).put_all(items())
    assert sum(call == "fsync" and TEMPORARY in path for call, path in system.calls) == len(OBJECTS)
    assert LocalStore(tmp_path).list() == sorted(OBJECTS)


def test_a_name_that_cannot_be_given_ends_the_group_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("replace", errno.EIO, path="a.json")))
    with pytest.raises(StoreUnavailable) as caught:
        store.put_all(items())
    assert caught.value.key == "steps/1/a.json"
    assert store.list() == ["packs/1", "packs/1.idx"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("below", ["root", "packs"])
def test_a_directory_whose_sync_fails_is_an_error(tmp_path: Path, below: str) -> None:
    root = tmp_path / "root"
    LocalStore(root).put("packs/0", b"")
    system = FailingSystem(lambda call, path: errno.EIO if call == "fsync" and path.endswith(below) else 0)
    with pytest.raises(StoreUnavailable):
        LocalStore(root, system=system).put_all(items())
    assert leftovers(root) == []


def test_a_directory_pruned_by_another_process_is_made_again(tmp_path: Path) -> None:
    def content() -> Iterator[bytes]:
        # Between two objects of the group, somebody deletes the last object of the next directory.
        LocalStore(tmp_path).delete("b/k")
        yield b"x"

    store = LocalStore(tmp_path)
    store.put("b/k", b"")
    store.put_all([("a", content()), ("b/new", b"y")])
    assert store.list() == ["a", "b/new"]


def test_deletions_share_one_sync_a_directory_and_keep_their_order(tmp_path: Path) -> None:
    LocalStore(tmp_path).put_all(
        (key, b"") for key in ("commits/1", "packs/1", "packs/2", "packs/kept", "s/1/a")
    )
    system = RecordingSystem()
    LocalStore(tmp_path, system=system).delete_all(["commits/1", "packs/2", "packs/none", "packs/1", "s/1/a"])
    assert system.calls == [
        ("unlink", str(tmp_path / "commits/1")),
        ("fsync", str(tmp_path / "commits")),
        ("unlink", str(tmp_path / "packs/2")),
        ("unlink", str(tmp_path / "packs/none")),
        ("unlink", str(tmp_path / "packs/1")),
        ("fsync", str(tmp_path / "packs")),
        ("unlink", str(tmp_path / "s/1/a")),
        ("fsync", str(tmp_path / "s/1")),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packs"]


def test_a_deletion_that_fails_names_its_object(tmp_path: Path) -> None:
    LocalStore(tmp_path).put_all((key, b"") for key in ("d/1", "d/2", "d/3"))
    store = LocalStore(tmp_path, system=FailingSystem(fail("unlink", errno.EACCES, path="2")))
    before = opened()
    with pytest.raises(StoreDenied) as caught:
        store.delete_all(["d/1", "d/2", "d/3"])
    assert caught.value.key == "d/2"
    assert store.list() == ["d/2", "d/3"]
    assert opened() == before


@pytest.mark.parametrize("wrong", ["../a", ""])
def test_a_bad_key_stops_the_deletion_where_it_stands(tmp_path: Path, wrong: str) -> None:
    store = LocalStore(tmp_path)
    store.put_all([("d/1", b""), ("d/2", b"")])
    with pytest.raises(StoreError):
        store.delete_all(["d/1", wrong, "d/2"])
    assert store.list() == ["d/2"]

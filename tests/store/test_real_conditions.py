"""The local store on a full disk, on a read-only mount, as another user, and killed while it writes.

Mounting needs root. Where it is not permitted the tests are skipped by name; under CI that is an error.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unbroken.errors import StoreDenied, StoreFull
from unbroken.format.buffers import Content
from unbroken.store.local import LocalStore
from unbroken.store.publish import TEMPORARY

NOBODY = 65534
MEBIBYTE = 1 << 20


def unavailable(reason: str) -> None:
    """Skip, by name; an error where everything is expected to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"not available: {reason}")
    pytest.skip(reason)


@contextmanager
def mounted(where: Path, *options: str) -> Generator[Path, None, None]:
    where.mkdir(exist_ok=True)
    ran = subprocess.run(["mount", *options, str(where)], capture_output=True, text=True, check=False)
    if ran.returncode:
        unavailable(f"mounting is not permitted here ({ran.stderr.strip()})")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "unbroken-test") as where:
        yield where


@pytest.fixture
def ext4_disk(tmp_path: Path) -> Generator[Path, None, None]:
    if shutil.which("mkfs.ext4") is None:
        unavailable("mkfs.ext4 is not installed")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 * MEBIBYTE)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as where:
        yield where


@contextmanager
def unprivileged() -> Generator[None, None, None]:
    """Root ignores modes: be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_directory() -> Generator[Path, None, None]:
    """A directory that every user can reach, unlike pytest's own."""
    where = Path(tempfile.mkdtemp(prefix="unbroken-test-"))
    where.chmod(0o755)
    yield where
    shutil.rmtree(where)


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
def test_a_full_disk_keeps_what_was_there(small_disk: Path, method: str) -> None:
    store = LocalStore(small_disk / "run")
    store.put("a/k", b"kept" * 1000)
    with pytest.raises(StoreFull) as caught:
        getattr(store, method)("a/big", (bytes(64 * 1024) for _ in range(32)))
    assert "big" in str(caught.value)
    assert caught.value.hint
    assert store.list() == ["a/k"]
    assert store.get("a/k") == b"kept" * 1000
    assert list(small_disk.rglob(f"{TEMPORARY}*")) == []
    # The room of the failed write is free again.
    store.put("a/fits", bytes(MEBIBYTE // 2))


def test_a_disk_that_gets_full_in_the_middle_of_a_group_keeps_what_was_there(small_disk: Path) -> None:
    store = LocalStore(small_disk / "run")
    store.put("a/k", b"kept")
    group: list[tuple[str, Content]] = [
        ("a/k", b"new"),
        ("b/half", bytes(MEBIBYTE // 2)),
        ("c/big", (bytes(64 * 1024) for _ in range(32))),
    ]
    with pytest.raises(StoreFull) as caught:
        store.put_all(group)
    assert caught.value.key == "c/big"
    assert store.list() == ["a/k"]
    assert store.get("a/k") == b"kept"
    assert list(small_disk.rglob(f"{TEMPORARY}*")) == []
    store.put_all([("b/fits", bytes(MEBIBYTE // 4)), ("c/too", bytes(MEBIBYTE // 4))])


def test_large_objects_on_a_full_disk_with_a_journal(ext4_disk: Path) -> None:
    """Where large contents pass by the page cache, the disk says at once that it is full."""
    store = LocalStore(ext4_disk / "run")
    store.put("a/k", b"kept")
    with pytest.raises(StoreFull):
        store.put_all([("b/first", bytes(9 * MEBIBYTE)), ("b/big", (bytes(MEBIBYTE) for _ in range(64)))])
    assert store.list() == ["a/k"]
    assert list(ext4_disk.rglob(f"{TEMPORARY}*")) == []
    content = b"x" * (9 * MEBIBYTE + 5)
    store.put("b/fits", content)
    memory = bytearray(len(content))
    assert store.read_into("b/fits", 0, [memoryview(memory)]) == len(content)
    assert memory == content


def test_replacing_on_a_full_disk_keeps_the_old(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    store.put("k", bytes(700 * 1024))
    with pytest.raises(StoreFull):
        store.put("k", b"\1" * (700 * 1024))
    assert store.get("k") == bytes(700 * 1024)


def test_a_disk_filled_by_others_can_be_cleaned(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    store.put("a/k", bytes(100 * 1024))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(2 * MEBIBYTE))
    with pytest.raises(StoreFull):
        store.put("a/new", bytes(100 * 1024))
    store.delete("a/k")
    store.put("a/new", bytes(50 * 1024))
    assert store.list("a") == ["a/new"]


def test_a_read_only_mount(tmp_path: Path) -> None:
    source = tmp_path / "disk"
    LocalStore(source).put("a/k", b"x")
    with mounted(tmp_path / "view", "--bind", str(source)) as view:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
        store = LocalStore(view)
        calls: list[Callable[[], object]] = [
            lambda: store.put("a/k", b"y"),
            lambda: store.put("b/k", b"y"),
            lambda: store.put_if_absent("a/new", b"y"),
            lambda: store.delete("a/k"),
        ]
        for call in calls:
            with pytest.raises(StoreDenied, match="read-only"):
                call()
        assert store.get("a/k") == b"x"
        assert store.list() == ["a/k"]
        with pytest.raises(StoreDenied):
            LocalStore(view / "run").put("a", b"")


def test_a_directory_of_somebody_else(open_directory: Path) -> None:
    root = open_directory / "root"
    LocalStore(root, file_mode=0o644, dir_mode=0o755).put("a/k", b"x")
    if os.geteuid() != 0:
        root.joinpath("a").chmod(0o555)
        root.chmod(0o555)
    with unprivileged():
        store = LocalStore(root)
        assert store.get("a/k") == b"x"
        calls: list[Callable[[], object]] = [
            lambda: store.put("a/k", b"y"),
            lambda: store.put("b/k", b"y"),
            lambda: store.put_if_absent("a/new", b"y"),
            lambda: store.delete("a/k"),
        ]
        for call in calls:
            with pytest.raises(StoreDenied, match="not permitted") as caught:
                call()
            assert caught.value.hint
    assert LocalStore(root).get("a/k") == b"x"
    root.chmod(0o755)
    root.joinpath("a").chmod(0o755)


def test_a_private_store_cannot_be_read_by_others(open_directory: Path) -> None:
    if os.geteuid() != 0:
        unavailable("becoming another user needs root")
    root = open_directory / "root"
    LocalStore(root).put("a/k", b"secret")
    with unprivileged():
        store = LocalStore(root)
        for call in (
            lambda: store.get("a/k"),
            store.list,
            lambda: store.children("a"),
            lambda: store.size("a/k"),
        ):
            with pytest.raises(StoreDenied):
                call()


def test_a_root_whose_parent_cannot_be_read(open_directory: Path) -> None:
    """A directory that an administrator made for us, in one that we may only pass through."""
    if os.geteuid() != 0:
        unavailable("becoming another user needs root")
    root = open_directory / "mine"
    root.mkdir()
    os.chown(root, NOBODY, NOBODY)
    open_directory.chmod(0o711)
    with unprivileged():
        store = LocalStore(root)
        store.put("a/k", b"x")
        assert store.get("a/k") == b"x"


WRITER = """
import sys
from unbroken.store.local import LocalStore

store = LocalStore(sys.argv[1])
number = 0
while True:
    number += 1
    content = str(number).encode() * 50_000
    store.put("replaced", content)
    store.put_if_absent(f"created/{number:06d}", content)
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 5, 9])
def test_a_killed_writer_leaves_whole_objects(tmp_path: Path, lines: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        acknowledged = max(map(int, [*first, *process.stdout.read().split()]))
    store = LocalStore(tmp_path)
    created = store.list("created")
    assert created == [f"created/{number:06d}" for number in range(1, len(created) + 1)]
    assert len(created) >= acknowledged
    for number, key in enumerate(created, start=1):
        assert store.get(key) == str(number).encode() * 50_000
    replaced = store.get("replaced")
    assert replaced == replaced[: len(replaced) // 50_000] * 50_000
    assert int(replaced[: len(replaced) // 50_000]) >= acknowledged
    store.sweep(older_than=-10)
    assert list(tmp_path.rglob(f"{TEMPORARY}*")) == []


GROUP_WRITER = """
import sys
from unbroken.store.local import LocalStore

store = LocalStore(sys.argv[1])
number = 0
while True:
    number += 1
    piece = str(number % 10).encode() * (1 << 20)
    store.put_all(
        [
            (f"packs/{number:06d}", (piece for _ in range(9))),
            (f"packs/{number:06d}.idx", b"index"),
            (f"steps/{number:06d}/manifest", b"manifest"),
        ]
    )
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_a_killed_writer_of_groups_leaves_whole_objects_in_their_order(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, "-c", GROUP_WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        acknowledged = max(map(int, [*first, *process.stdout.read().split()]))
    store = LocalStore(tmp_path)
    packs = [key.partition("/")[2] for key in store.list("packs") if not key.endswith(".idx")]
    indexes = [key[6:-4] for key in store.list("packs") if key.endswith(".idx")]
    manifests = [key.split("/")[1] for key in store.list("steps")]
    assert len(manifests) >= acknowledged
    assert manifests == packs[: len(manifests)]
    assert indexes == packs[: len(indexes)]
    assert len(manifests) <= len(indexes) <= len(packs) <= len(manifests) + 1
    for number, pack in enumerate(packs, start=1):
        assert store.get(f"packs/{pack}") == str(number % 10).encode() * (9 * MEBIBYTE)
    store.sweep(older_than=-10)
    assert list(tmp_path.rglob(f"{TEMPORARY}*")) == []

"""What the local store does beyond the suite: order, errors, links, modes, leftovers."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unbroken.errors import (
    ConfigError,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from unbroken.store.base import (
    SupportsAppend,
    SupportsChildren,
    SupportsLocalPath,
    SupportsSweep,
    SupportsWords,
    append,
)
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.store.publish import TEMPORARY
from unbroken.testing.faulty_system import FailingSystem, NoLinks, RecordingSystem, ShortCalls, fail

WRITES = ["put", "put_if_absent"]


def leftovers(root: Path) -> list[Path]:
    return sorted(root.rglob(f"{TEMPORARY}*"))


def test_abilities(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert isinstance(store, SupportsChildren)
    assert isinstance(store, SupportsLocalPath)
    assert isinstance(store, SupportsSweep)
    assert isinstance(store, SupportsAppend)
    assert isinstance(store, SupportsWords)


# Order


def test_a_word_appears_whole_without_a_wait_for_the_disk(tmp_path: Path) -> None:
    system = RecordingSystem()
    store = LocalStore(tmp_path / "root", system=system)
    store.put("there", b"")  # the root and its name are made by whoever opens the run
    system.calls.clear()
    assert store.say("words/k", b"x")
    assert not store.say("words/k", b"y")
    assert store.get("words/k") == b"x"
    assert [call for call in system.calls if call[0] == "fsync"] == []
    assert leftovers(tmp_path) == []


def test_an_object_beside_a_word_gets_a_durable_directory(tmp_path: Path) -> None:
    system = RecordingSystem()
    store = LocalStore(tmp_path / "root", system=system)
    store.say("words/k", b"x")
    store.put("words/j", b"y")
    assert ("fsync", str(tmp_path / "root")) in system.calls


@pytest.mark.parametrize(("method", "naming"), [("put", "replace"), ("put_if_absent", "link")])
def test_file_then_name_then_directory(tmp_path: Path, method: str, naming: str) -> None:
    system = RecordingSystem()
    store = LocalStore(tmp_path / "root", system=system, token=lambda: "t")
    getattr(store, method)("a/k", b"x")

    root, temporary = tmp_path / "root", tmp_path / "root/a/.tmp-t"
    meaningful = [call for call in system.calls if call[0] != "unlink"]
    content = [("fsync", str(temporary)), ("close", str(temporary))]
    assert meaningful[:4] == [
        ("mkdir", str(root)),
        ("fsync", str(tmp_path)),
        ("mkdir", str(root / "a")),
        ("pwrite", str(temporary)),
    ]
    # The name of the new directory becomes durable together with the content.
    assert [call for call in meaningful[4:7] if call[1] == str(temporary)] == content
    assert ("fsync", str(root)) in meaningful[4:7]
    assert meaningful[7:] == [(naming, str(root / "a/k")), ("fsync", str(root / "a"))]


def test_what_is_appended_is_durable(tmp_path: Path) -> None:
    system = RecordingSystem()
    store = LocalStore(tmp_path / "root", system=system)
    store.append("a/log", b"one\n")
    root = tmp_path / "root"
    assert system.calls[-4:] == [
        ("write", str(root / "a/log")),
        ("fsync", str(root / "a/log")),
        ("close", str(root / "a/log")),
        ("fsync", str(root / "a")),
    ]
    assert stat.S_IMODE((root / "a/log").stat().st_mode) == 0o600
    store.append("a/log", b"two\n")
    assert store.get("a/log") == b"one\ntwo\n"


def test_lines_of_two_writers_are_all_kept(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path), LocalStore(tmp_path)]
    for number in range(10):
        append(stores[number % 2], "log", f"{number}\n".encode())
    assert stores[0].get("log") == b"".join(b"%d\n" % number for number in range(10))


@pytest.mark.parametrize("kind", [LocalStore, MemoryStore])
def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path, kind: type) -> None:
    store = LocalStore(tmp_path) if kind is LocalStore else MemoryStore()
    append(store, "log", b"one\n")
    store.put("log", store.get("log") + b"tw")
    append(store, "log", b"three\n")
    assert store.get("log") == b"one\ntw\nthree\n"


def test_appending_through_a_link_or_to_a_full_disk_fails(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        LocalStore(tmp_path).append("log", b"x\n")
    system = FailingSystem(fail("write", errno.ENOSPC))
    with pytest.raises(StoreFull):
        LocalStore(tmp_path, system=system).append("other", b"x\n")


def test_a_directory_that_another_process_made_gets_a_durable_name_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    system = RecordingSystem()
    store = LocalStore(tmp_path, system=system)
    store.put("a/1", b"")
    store.put("a/2", b"")
    synced = [path for call, path in system.calls if call == "fsync"]
    assert synced.count(str(tmp_path)) == 1
    assert synced.count(str(tmp_path.parent)) == 1


def test_a_deletion_is_durable(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a/k", b"")
    system = RecordingSystem()
    LocalStore(tmp_path, system=system).delete("a/k")
    assert system.calls == [("unlink", str(tmp_path / "a/k")), ("fsync", str(tmp_path / "a"))]


def whole_calls(trace: str) -> list[str]:
    """Return the calls in a trace as they ended; strace cuts one in two where another thread comes between."""
    calls: list[str] = []
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>")
        elif call.startswith("<... "):
            calls.append(begun.pop(thread, "") + call.partition("resumed>")[2])
        else:
            calls.append(call)
    return calls


def test_a_call_that_was_cut_in_two_is_put_together() -> None:
    cut = '7 fsync(3</r/a> <unfinished ...>\n8 exit(0) = ?\n7 <... fsync resumed>) = 0\n7  mkdir("/r") = 0'
    assert whole_calls(cut) == ["exit(0) = ?", "fsync(3</r/a> ) = 0", 'mkdir("/r") = 0']


def test_the_kernel_sees_the_same_order(tmp_path: Path) -> None:
    """The recording above is ours; this one is made by strace around a real process."""
    if not Path("/usr/bin/strace").exists():
        if os.environ.get("CI"):
            pytest.fail("strace is not installed")
        pytest.skip("strace is not installed")
    script = (
        "from unbroken.store.local import LocalStore\n"
        f"store = LocalStore({str(tmp_path / 'r')!r})\n"
        "store.put('a/first', b'x')\n"
        "store.put('a/k', b'x')"
    )
    trace = tmp_path / "trace"
    calls = "fsync,rename,renameat,renameat2,mkdir,mkdirat"
    command = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(trace), sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ptrace" in ran.stderr.lower() and not os.environ.get("CI"):
        pytest.skip("this machine does not permit ptrace")
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in whole_calls(trace.read_text()) if str(tmp_path) in line]
    shape = [(line.split("(")[0].rstrip("2"), ".tmp-" in line, line.split("=")[-1].strip()) for line in lines]
    assert shape[:3] == [("mkdir", False, "0"), ("fsync", False, "0"), ("mkdirat", False, "0")]
    # In between, the first object's file and the new directory are synced by two threads at once.
    assert shape[-3:] == [
        ("fsync", True, "0"),
        ("renameat", True, "0"),
        ("fsync", False, "0"),
    ]


# Errors of the operating system


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("call", ["pwrite", "fsync", "close"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreDenied),
        (errno.EACCES, StoreDenied),
        (errno.EIO, StoreUnavailable),
    ],
)
def test_a_failed_write_leaves_no_trace(
    tmp_path: Path, method: str, call: str, code: int, expected: type[StoreError]
) -> None:
    store = LocalStore(tmp_path)
    store.put("d/old", b"old")
    failing = LocalStore(tmp_path, system=FailingSystem(fail(call, code, path=TEMPORARY)))
    with pytest.raises(expected) as caught:
        getattr(failing, method)("d/k", b"x" * 100)
    assert caught.value.key == "d/k"
    assert store.list() == ["d/old"]
    assert leftovers(tmp_path) == []


def test_a_failed_sync_is_not_repeated_on_the_same_file(tmp_path: Path) -> None:
    system = FailingSystem(fail("fsync", errno.EIO, path=TEMPORARY, times=1))
    store = LocalStore(tmp_path, system=system)
    with pytest.raises(StoreUnavailable):
        store.put("k", b"x")
    store.put("k", b"x")
    assert store.get("k") == b"x"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_directory_that_cannot_be_synced_is_tolerated(tmp_path: Path, code: int) -> None:
    def rule(call: str, path: str) -> int:
        return code if call == "fsync" and TEMPORARY not in path else 0

    store = LocalStore(tmp_path, system=FailingSystem(rule))
    assert store.put_if_absent("a/k", b"x")
    assert store.get("a/k") == b"x"


def test_a_file_that_cannot_be_synced_is_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("fsync", errno.EINVAL, path=TEMPORARY)))
    with pytest.raises(StoreError):
        store.put("k", b"x")


def test_a_directory_whose_sync_fails_is_an_error(tmp_path: Path) -> None:
    def rule(call: str, path: str) -> int:
        return errno.EIO if call == "fsync" and TEMPORARY not in path else 0

    with pytest.raises(StoreUnavailable):
        LocalStore(tmp_path, system=FailingSystem(rule)).put("k", b"x")


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_a_link_that_happened_and_failed_counts_as_ours(tmp_path: Path, code: int) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("link", code), after=True))
    assert store.put_if_absent("k", b"x") is True
    assert store.get("k") == b"x"
    assert leftovers(tmp_path) == []


def test_a_link_that_failed_and_did_not_happen_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("link", errno.EIO)))
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("k", b"x")
    assert store.list() == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("after", "works"), [(True, True), (False, False)])
def test_a_rename_that_failed_is_looked_at(tmp_path: Path, *, after: bool, works: bool) -> None:
    LocalStore(tmp_path).put("k", b"old")
    store = LocalStore(tmp_path, system=FailingSystem(fail("replace", errno.EIO), after=after))
    if works:
        store.put("k", b"new")
    else:
        with pytest.raises(StoreUnavailable):
            store.put("k", b"new")
    assert store.get("k") == (b"new" if works else b"old")
    assert leftovers(tmp_path) == []


def test_without_links_a_full_disk_leaves_no_half_object(tmp_path: Path) -> None:
    class Full(NoLinks):
        def fsync(self, descriptor: int) -> None:
            if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("/k"):
                return super().fsync(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = LocalStore(tmp_path, system=Full())
    with pytest.raises(StoreFull):
        store.put_if_absent("k", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_stale_handle_is_opened_again(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("k", b"x")
    store = LocalStore(tmp_path, system=FailingSystem(fail("open", errno.ESTALE, path="k", times=2)))
    assert store.get("k") == b"x"


def test_a_file_that_stays_stale_is_unavailable(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("k", b"x")
    store = LocalStore(tmp_path, system=FailingSystem(fail("open", errno.ESTALE, path="k")))
    with pytest.raises(StoreUnavailable):
        store.get("k")


def test_small_writes_may_be_short(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=ShortCalls())
    store.put("k", [b"0123456789" * 3, b"", b"end"])
    assert store.get("k") == b"0123456789" * 3 + b"end"


def test_a_file_system_without_modes_is_usable(tmp_path: Path) -> None:
    old = os.umask(0o777)
    try:
        LocalStore(tmp_path, system=FailingSystem(fail("fchmod", errno.EPERM))).put("k", b"x")
    finally:
        os.umask(old)
    assert LocalStore(tmp_path).size("k") == 1


# Roots


@pytest.mark.parametrize("below", ["", "sub", "sub/deeper"])
def test_a_root_that_is_a_file_is_refused_at_once(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not a directory"):
        LocalStore(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_root_that_is_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="link to nothing"):
        LocalStore(tmp_path / "link")


def test_a_root_that_is_a_link_to_a_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    LocalStore(tmp_path / "link").put("k", b"x")
    assert (tmp_path / "there" / "k").read_bytes() == b"x"


def test_opening_and_reading_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    assert store.list() == []
    store.delete("k")
    assert store.sweep(older_than=0) == []
    with pytest.raises(ObjectMissing):
        store.get("k")
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_vanishes_is_not_begun_anew(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("k", b"x")
    (tmp_path / "root").rename(tmp_path / "moved")
    with pytest.raises(StoreUnavailable):
        store.put("k2", b"x")
    assert not (tmp_path / "root").exists()


def test_a_relative_root_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("root")
    monkeypatch.chdir("/")
    store.put("k", b"x")
    assert (tmp_path / "root" / "k").read_bytes() == b"x"


# Modes


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        LocalStore(tmp_path / "private").put("d/k", b"x")
        LocalStore(tmp_path / "shared", file_mode=0o640, dir_mode=0o750).put_if_absent("d/k", b"x")
    finally:
        os.umask(old)
    found = {
        path.relative_to(tmp_path).as_posix(): oct(mode_of(path)) for path in sorted(tmp_path.rglob("*"))
    }
    assert found == {
        "private": "0o700",
        "private/d": "0o700",
        "private/d/k": "0o600",
        "shared": "0o750",
        "shared/d": "0o750",
        "shared/d/k": "0o640",
    }


def test_an_inherited_group_bit_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o2770)
    old = os.umask(0o022)
    try:
        LocalStore(root, dir_mode=0o770).put("d/k", b"x")
    finally:
        os.umask(old)
    assert mode_of(root / "d") == 0o2770


def test_modes_that_exist_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o755)
    LocalStore(tmp_path).put("d/k", b"x")
    assert mode_of(tmp_path / "d") == 0o755


# Leftovers


def test_sweep_takes_old_leftovers_only(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = LocalStore(tmp_path, clock=lambda: now)
    store.put("d/k", b"x")
    for name, age in ((".tmp-old", 100), (".tmp-young", 5), (".other", 100), ("d/.tmp-old", 100)):
        path = tmp_path / name
        path.write_bytes(b"half")
        os.utime(path, (now - age, now - age))
    os.utime(tmp_path / "d" / "k", (0, 0))
    assert store.sweep(older_than=60) == [".tmp-old", "d/.tmp-old"]
    assert store.sweep(older_than=60) == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        ".other",
        ".tmp-young",
        "k",
    ]


def test_a_swept_writer_gets_an_error_and_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def content() -> Iterator[bytes]:
        yield b"half"
        assert len(LocalStore(tmp_path).sweep(older_than=-10)) == 1
        yield b"rest"

    with pytest.raises(StoreUnavailable):
        store.put_if_absent("k", content())
    assert store.list() == []


def test_a_leftover_that_cannot_be_removed_does_not_hide_the_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, system=FailingSystem(fail("unlink", errno.EBUSY)))
    assert store.put_if_absent("k", b"x") is True
    assert len(leftovers(tmp_path)) == 1
    assert len(LocalStore(tmp_path).sweep(older_than=-10)) == 1
    assert LocalStore(tmp_path).list() == ["k"]


def test_no_descriptor_is_lost(tmp_path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    store = LocalStore(tmp_path)
    store.put("a/b/k", b"x")
    before = opened()
    store.put("a/c/k", b"x")
    store.put_if_absent("a/b/k", b"x")
    store.get("a/b/k")
    store.list()
    store.sweep(older_than=0)
    store.delete("a/c/k")
    for key in ("a/b/none", "none/k", "a/b/k/below", "a"):
        with pytest.raises(StoreError):
            store.get(key)
    with pytest.raises(StoreError):
        store.put("a/b/k/below", b"")
    for call in ("pwrite", "fsync", "close", "link", "replace", "open", "create"):
        failing = LocalStore(tmp_path, system=FailingSystem(fail(call, errno.EIO)))
        for write in (failing.put, failing.put_if_absent):
            with suppress(StoreError):
                write("a/b/new", b"x")
    assert opened() == before


def test_a_note_is_written_in_place(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.note("n.json", b"first, which is longer")
    inode = (tmp_path / "n.json").stat().st_ino
    store.note("n.json", b"second")
    assert store.get("n.json").rstrip() == b"second"
    assert (tmp_path / "n.json").stat().st_ino == inode
    store.note("n.json", b"")
    assert not store.get("n.json").strip()


def test_a_note_that_does_not_fit_in_place_is_replaced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("n.json", b"written by put")
    store.note("n.json", b"x" * 5000)
    assert store.get("n.json") == b"x" * 5000
    store.note("n.json", b"y")
    assert store.get("n.json").rstrip() == b"y"


def test_a_note_on_a_disk_that_takes_a_part_of_it_is_whole(tmp_path: Path) -> None:
    LocalStore(tmp_path).note("n.json", b"first")
    store = LocalStore(tmp_path, system=ShortCalls())
    store.note("n.json", b"second")
    assert store.get("n.json").rstrip() == b"second"


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    limited = (
        "import resource, sys; from unbroken.store.local import LocalStore; from unbroken.errors import StoreDenied\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    LocalStore(sys.argv[1]).put('a', bytes(5000))\n"
        "except StoreDenied as error:\n    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "would pass the largest file that is allowed here" in told.stdout
    assert "ulimit -f" in told.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

"""Large objects of the local store, which pass by the page cache, on good and bad disks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from unbroken.errors import StoreFull, StoreUnavailable
from unbroken.format.buffers import Buffer, Content
from unbroken.store import reading, writing
from unbroken.store.blocks import ALIGNMENT, BLOCK, KEPT, Blocks
from unbroken.store.local import LocalStore
from unbroken.store.publish import TEMPORARY
from unbroken.store.system import System
from unbroken.testing.faulty_system import FailingSystem, ShortCalls, fail

MEBIBYTE = 1 << 20
PIECE = random.Random(1).randbytes(MEBIBYTE)
SIZES = [
    writing.LEAST - 1,
    writing.LEAST,
    writing.LEAST + 1,
    BLOCK,
    BLOCK + ALIGNMENT,
    (KEPT + 1) * BLOCK + 12_345,
]


def pieces(size: int) -> Iterator[bytes]:
    """Yield `size` bytes as a pack has them: large pieces with small ones between them."""
    while size > 0:
        for piece in (b"entry" * 13, PIECE):
            yield piece[:size]
            size -= min(size, len(piece))


def content(size: int) -> bytes:
    return b"".join(pieces(size))


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unbroken-write")]


class Modes(System):
    """Notes for each write and read of a file whether it passes by the page cache."""

    def __init__(self) -> None:
        self.writes: list[tuple[bool, int, int]] = []
        self.reads: list[bool] = []

    def _direct(self, descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        self.writes.append((self._direct(descriptor), memoryview(data).nbytes, offset))
        return super().pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        self.reads.append(self._direct(descriptor))
        return super().preadv(descriptor, parts, offset)


class Refusing(System):
    """A file system that knows no O_DIRECT."""

    def set_direct(self, descriptor: int, *, on: bool) -> bool:
        return False


class RefusingLater(System):
    """A file system that says it does, and refuses every single call."""

    def __init__(self) -> None:
        self.refused = 0

    def _refuse(self, descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            self.refused += 1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        self._refuse(descriptor)
        return super().pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        self._refuse(descriptor)
        return super().preadv(descriptor, parts, offset)


def needs_direct(where: Path) -> None:
    probe = os.open(where, os.O_RDWR | os.O_TMPFILE)
    try:
        if not System().set_direct(probe, on=True):
            pytest.skip("the file system of the temporary directory knows no O_DIRECT")
    finally:
        os.close(probe)


def drop_cache(path: Path) -> None:
    """Take a file out of the page cache, and make sure of it."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(file.fileno()):
            pytest.skip("the page cache of this file system cannot be emptied")


def resident(descriptor: int) -> int:
    """Return how many pages of a file are in the page cache."""
    with mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE) as view:
        seen = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(view)
        ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(len(view)), seen)
        del first
        return sum(page & 1 for page in bytes(seen))


# Writing


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [System, Refusing, RefusingLater, lambda: ShortCalls(3 * MEBIBYTE + 7)])
def test_every_size_comes_back(tmp_path: Path, size: int, kind: Callable[[], System]) -> None:
    store = LocalStore(tmp_path, system=kind())
    assert store.put_if_absent("large", pieces(size)) is True
    assert store.get("large") == content(size)


def test_what_is_large_passes_by_the_page_cache_but_for_its_end(tmp_path: Path) -> None:
    needs_direct(tmp_path)
    system = Modes()
    size = 2 * BLOCK + 3 * ALIGNMENT + 5
    LocalStore(tmp_path, system=system).put("large", pieces(size))
    assert sorted(system.writes, key=lambda write: write[2]) == [
        (True, BLOCK, 0),
        (True, BLOCK, BLOCK),
        (True, 3 * ALIGNMENT, 2 * BLOCK),
        (False, 5, 2 * BLOCK + 3 * ALIGNMENT),
    ]


@pytest.mark.parametrize("small", [[b"ab", b"c"], b"abc", memoryview(b"abc")])
def test_what_is_small_does_not(tmp_path: Path, small: Content) -> None:
    system = Modes()
    LocalStore(tmp_path, system=system).put("small", small)
    assert system.writes == [(False, 3, 0)]


def test_a_refusal_is_met_once_a_write_at_most(tmp_path: Path) -> None:
    needs_direct(tmp_path)
    system = RefusingLater()
    LocalStore(tmp_path, system=system).put("large", pieces(6 * BLOCK))
    assert 1 <= system.refused <= writing.IN_FLIGHT


def test_pieces_may_be_overwritten_once_they_were_taken(tmp_path: Path) -> None:
    memory = bytearray(MEBIBYTE)

    def reused() -> Iterator[bytearray]:
        for number in range(20):
            memory[:] = bytes([number]) * MEBIBYTE
            yield memory

    store = LocalStore(tmp_path)
    store.put("k", reused())
    assert store.get("k") == b"".join(bytes([number]) * MEBIBYTE for number in range(20))


@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreUnavailable)])
@pytest.mark.parametrize("nth", [0, 1, 3, 5])
def test_a_disk_that_fails_in_the_middle(
    tmp_path: Path, nth: int, code: int, expected: type[Exception]
) -> None:
    guard = threading.Lock()
    seen = [0]

    def rule(call: str, path: str) -> int:
        with guard:
            seen[0] += call == "pwrite"
            return code if call == "pwrite" and seen[0] > nth else 0

    before = opened()
    store = LocalStore(tmp_path, system=FailingSystem(rule))
    with pytest.raises(expected):
        store.put_all([("large", pieces(5 * BLOCK + 5)), ("small", b"x")])
    assert store.list() == []
    assert list(tmp_path.rglob(f"{TEMPORARY}*")) == []
    assert writers() == []
    assert opened() == before


def test_after_an_error_no_more_is_asked_for(tmp_path: Path) -> None:
    """A full disk ends a save at once, and not after the rest of it was compressed."""
    asked = [0]

    def counted() -> Iterator[bytes]:
        for _ in range(100):
            asked[0] += 1
            yield PIECE

    store = LocalStore(tmp_path, system=FailingSystem(fail("pwrite", errno.ENOSPC)))
    with pytest.raises(StoreFull):
        store.put("large", counted())
    assert asked[0] <= KEPT * BLOCK // MEBIBYTE


def test_a_content_that_fails_while_others_are_written(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield from pieces(3 * BLOCK)
        raise ZeroDivisionError

    before = opened()
    store = LocalStore(tmp_path)
    with pytest.raises(ZeroDivisionError):
        store.put("large", broken())
    assert store.list() == []
    assert list(tmp_path.rglob(f"{TEMPORARY}*")) == []
    assert writers() == []
    assert opened() == before


def test_where_no_thread_can_be_started_it_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    store = LocalStore(tmp_path)
    store.put("large", pieces(4 * BLOCK + 1))
    assert store.get("large") == content(4 * BLOCK + 1)


def test_several_large_objects_at_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    sizes = [2 * BLOCK + number for number in range(3)]
    threads = [threading.Thread(target=store.put, args=(str(size), pieces(size))) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in sizes:
        assert store.get(str(size)) == content(size)


def test_few_blocks_are_kept_and_used_again() -> None:
    blocks = Blocks()
    taken = [blocks.take() for _ in range(KEPT + 2)]
    for number, block in enumerate(taken):
        block[0] = number
        blocks.give(block)
    assert sorted(blocks.take()[0] for _ in range(KEPT + 1)) == [0, *range(2, KEPT + 2)]


def test_a_forked_child_has_blocks_of_its_own() -> None:
    blocks = Blocks()
    with blocks.borrowed() as block:
        block[0] = 1
    child = os.fork()
    if not child:
        with blocks.borrowed() as block:
            block[0] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert blocks.take()[0] == 1


# Reading


@pytest.mark.parametrize("kind", [System, Refusing, RefusingLater, lambda: ShortCalls(3 * MEBIBYTE + 7)])
@pytest.mark.parametrize("cold", [True, False])
def test_parts_are_filled_from_any_offset(tmp_path: Path, kind: Callable[[], System], *, cold: bool) -> None:
    size = BLOCK + reading.LEAST + 777
    whole = content(size)
    LocalStore(tmp_path).put("k", whole)
    store = LocalStore(tmp_path, system=kind())
    for offset in (0, ALIGNMENT + 1, BLOCK - 1, size - 5, size):
        if cold:
            drop_cache(tmp_path / "k")
        memory = memoryview(bytearray(size))
        parts = [memory[at : at + MEBIBYTE + 7] for at in range(0, size, MEBIBYTE + 7)]
        expected = whole[offset:]
        assert store.read_into("k", offset, parts) == len(expected)
        assert memory[: len(expected)] == expected
        assert not any(memory[len(expected) :])


def test_what_is_cold_is_read_past_the_page_cache_and_what_is_warm_from_it(tmp_path: Path) -> None:
    needs_direct(tmp_path)
    size = 3 * BLOCK
    path = tmp_path / "k"
    LocalStore(tmp_path).put("k", pieces(size))
    drop_cache(path)
    system = Modes()
    store = LocalStore(tmp_path, system=system)
    memory = memoryview(bytearray(size))
    store.read_into("k", 5, [memory[5:]])
    assert system.reads == [True, True, True]
    assert memory[5:] == content(size)[5:]
    with path.open("rb") as file:
        assert resident(file.fileno()) < BLOCK // mmap.PAGESIZE
    store.get("k")
    system.reads.clear()
    store.read_into("k", 0, [memory])
    assert system.reads == [False, False, False]


def test_what_was_written_and_is_not_on_the_disk_yet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "k"
    LocalStore(tmp_path).put("k", pieces(2 * BLOCK))
    drop_cache(path)
    with path.open("r+b") as file:
        file.write(b"new")
        file.flush()
        memory = memoryview(bytearray(2 * BLOCK))
        LocalStore(tmp_path).read_into("k", 0, [memory])
    assert memory == b"new" + content(2 * BLOCK)[3:]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_read_that_fails_is_an_error(tmp_path: Path, code: int) -> None:
    LocalStore(tmp_path).put("k", b"x")
    store = LocalStore(tmp_path, system=FailingSystem(fail("preadv", code)))
    before = opened()
    with pytest.raises(StoreUnavailable):
        store.read_into("k", 0, [memoryview(bytearray(1))])
    assert opened() == before


def test_a_stale_handle_is_opened_again(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("k", b"x")
    store = LocalStore(tmp_path, system=FailingSystem(fail("open", errno.ESTALE, path="k", times=2)))
    memory = bytearray(1)
    assert store.read_into("k", 0, [memoryview(memory)]) == 1
    assert memory == b"x"

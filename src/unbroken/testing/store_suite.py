"""What every byte store must do, as tests: subclass it and give a store.

    class TestMyStore(StoreSuite):
        def make_store(self, tmp_path):
            return MyStore(tmp_path)

        def reopen(self, store):
            return MyStore(store.where)

Needs pytest. What only some stores can do is tested where the store says it can. Durability cannot be
tested from inside a process; a backend shows it by other means.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unbroken.errors import ObjectBlocked, ObjectMissing, StoreError
from unbroken.format.buffers import Content
from unbroken.store.base import (
    ByteStore,
    SupportsChildren,
    SupportsLocalPath,
    SupportsPutAll,
    children,
    delete_all,
    put_all,
    read_into,
)

__all__ = ["StoreSuite"]

_BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.tmp-1",
    "a\\b",
    "a\0b",
    "a\nb",
    "\ud800",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]


def _get(store: ByteStore, key: str) -> object:
    return store.get(key)


def _get_range(store: ByteStore, key: str) -> object:
    return store.get_range(key, 0, 1)


def _size(store: ByteStore, key: str) -> object:
    return store.size(key)


def _read_into(store: ByteStore, key: str) -> object:
    return read_into(store, key, 0, [memoryview(bytearray(1))])


class StoreSuite(ABC):
    """The tests. Each gets a fresh, empty store."""

    @abstractmethod
    def make_store(self, tmp_path: Path) -> ByteStore:
        """Return an empty store."""

    def reopen(self, store: ByteStore) -> ByteStore:
        """Return another object for the same store, as a second process would make it."""
        return store

    @pytest.fixture
    def store(self, tmp_path: Path) -> ByteStore:
        """The empty store that each test begins with."""
        return self.make_store(tmp_path)

    def test_empty_store_lists_nothing(self, store: ByteStore) -> None:
        assert store.list() == []
        assert store.list("a/b") == []

    @pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
    def test_what_was_put_is_there(self, store: ByteStore, content: bytes) -> None:
        store.put("a/b/c.bin", content)
        again = self.reopen(store)
        assert again.get("a/b/c.bin") == content
        assert again.size("a/b/c.bin") == len(content)
        assert again.list() == ["a/b/c.bin"]

    @pytest.mark.parametrize("method", ["put", "put_if_absent"])
    def test_content_may_come_in_pieces(self, store: ByteStore, method: str) -> None:
        pieces = (piece for piece in (b"ab", bytearray(b"c"), memoryview(b"de"), b""))
        getattr(store, method)("k", pieces)
        assert store.get("k") == b"abcde"

    def test_content_may_be_a_view_of_wider_items(self, store: ByteStore) -> None:
        view = memoryview(bytes(range(16))).cast("Q")
        store.put("k", view)
        store.put("pieces", [view, view])
        assert store.get("k") == bytes(range(16))
        assert store.get("pieces") == bytes(range(16)) * 2

    def test_put_replaces(self, store: ByteStore) -> None:
        store.put("k", b"long before")
        store.put("k", b"new")
        assert self.reopen(store).get("k") == b"new"

    def test_put_if_absent_takes_only_a_free_name(self, store: ByteStore) -> None:
        assert store.put_if_absent("d/k", b"first") is True
        assert store.put_if_absent("d/k", b"second") is False
        assert self.reopen(store).put_if_absent("d/k", b"third") is False
        assert store.get("d/k") == b"first"
        assert store.list() == ["d/k"]

    def test_put_if_absent_respects_an_empty_object(self, store: ByteStore) -> None:
        assert store.put_if_absent("k", b"") is True
        assert store.put_if_absent("k", b"") is False

    def test_a_deleted_name_is_free(self, store: ByteStore) -> None:
        store.put("k", b"1")
        store.delete("k")
        assert store.put_if_absent("k", b"2") is True
        assert store.get("k") == b"2"

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [(0, 3, b"012"), (2, 3, b"234"), (8, 9, b"89"), (0, 10, b"0123456789"), (10, 1, b""), (99, 5, b""), (3, 0, b"")],
    )  # fmt: skip
    def test_ranges(self, store: ByteStore, offset: int, length: int, expected: bytes) -> None:
        store.put("k", b"0123456789")
        assert store.get_range("k", offset, length) == expected

    def test_a_huge_range_gives_what_there_is(self, store: ByteStore) -> None:
        store.put("k", b"0123456789")
        assert store.get_range("k", 5, 2**60) == b"56789"

    @pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1)])
    def test_negative_ranges_are_refused(self, store: ByteStore, offset: int, length: int) -> None:
        store.put("k", b"0123456789")
        with pytest.raises(StoreError):
            store.get_range("k", offset, length)
        with pytest.raises(StoreError):
            read_into(store, "k", -1, [memoryview(bytearray(1))])

    def test_what_is_missing_is_named(self, store: ByteStore) -> None:
        store.put("a/b", b"")
        for key in ("nothing", "a/nothing", "no/thing", "a", "a/b/c"):
            # Of a directory a store of files may say that no object can ever be there.
            kinds = (ObjectMissing, ObjectBlocked) if key == "a" else ObjectMissing
            for read in (_get, _get_range, _size, _read_into):
                with pytest.raises(kinds) as caught:
                    read(store, key)
                assert caught.value.key == key

    def test_deleting_what_is_missing_is_no_error(self, store: ByteStore) -> None:
        store.put("a/b/c", b"")
        for key in ("nothing", "a/nothing", "no/thing", "a/b", "a/b/c/d"):
            store.delete(key)
        store.delete("a/b/c")
        store.delete("a/b/c")
        assert store.list() == []

    def test_listing(self, store: ByteStore) -> None:
        keys = ["a/1", "a/10", "a/b/1", "a-b", "a.b", "ab/1", "b", "é/ü"]
        for key in reversed(keys):
            store.put(key, key.encode())
        assert store.list() == sorted(keys)
        assert store.list("a") == ["a/1", "a/10", "a/b/1"]
        assert store.list("a/b") == ["a/b/1"]
        assert store.list("b") == []
        assert store.list("é") == ["é/ü"]

    def test_children(self, store: ByteStore) -> None:
        for key in ("a/1", "a/b/1", "a/b/2", "c"):
            store.put(key, b"")
        assert children(store) == ["a", "c"]
        assert children(store, "a") == ["1", "b"]
        assert children(store, "nothing") == []
        if isinstance(store, SupportsChildren):
            assert store.children("a/b") == ["1", "2"]

    @pytest.mark.parametrize("key", _BAD_KEYS)
    def test_bad_keys_are_refused_everywhere(self, store: ByteStore, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.size(key),
            lambda: store.put(key, b""),
            lambda: store.put_if_absent(key, b""),
            lambda: store.delete(key),
            lambda: put_all(store, [(key, b"")]),
            lambda: delete_all(store, [key]),
            lambda: read_into(store, key, 0, [memoryview(bytearray(1))]),
        ]
        if key:
            calls.append(lambda: store.list(key))
        for call in calls:
            with pytest.raises(StoreError) as caught:
                call()
            assert not isinstance(caught.value, ObjectMissing)
        assert store.list() == []

    @pytest.mark.parametrize("method", ["put", "put_if_absent"])
    def test_content_that_fails_leaves_nothing(self, store: ByteStore, method: str) -> None:
        def broken() -> object:
            yield b"half"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            getattr(store, method)("d/k", broken())
        assert store.list() == []
        assert store.put_if_absent("d/k", b"whole") is True

    def test_several_objects_at_once(self, store: ByteStore) -> None:
        store.put("d/old", b"old")
        wide = memoryview(bytes(range(16))).cast("Q")
        pieces = (piece for piece in (b"ab", bytearray(b"c"), memoryview(b"de"), b""))
        put_all(store, [("p/pack", pieces), ("d/old", b"new"), ("p/wide", wide), ("empty", b"")])
        again = self.reopen(store)
        assert again.list() == ["d/old", "empty", "p/pack", "p/wide"]
        assert [again.get(key) for key in again.list()] == [b"new", b"", b"abcde", bytes(range(16))]
        put_all(store, [])
        assert store.list() == again.list()

    def test_of_one_key_twice_the_last_stays(self, store: ByteStore) -> None:
        put_all(store, [("k", b"1"), ("k", b"22")])
        assert store.get("k") == b"22"

    def test_a_later_content_may_depend_on_an_earlier_one(self, store: ByteStore) -> None:
        """An index is known when its pack has been written."""
        sizes: list[int] = []

        def pack() -> Iterator[bytes]:
            for size in (3, 5):
                sizes.append(size)
                yield bytes(size)

        def items() -> Iterator[tuple[str, Content]]:
            yield "pack", pack()
            yield "index", repr(sizes).encode()

        put_all(store, items())
        assert store.get("index") == b"[3, 5]"
        assert store.get("pack") == bytes(8)

    def test_names_appear_after_all_contents(self, store: ByteStore) -> None:
        if not isinstance(store, SupportsPutAll):
            pytest.skip("writes one object after the other")
        seen: list[list[str]] = []

        def content() -> Iterator[bytes]:
            seen.append(store.list())
            yield b"x"

        store.put_all([(f"d/{number}", content()) for number in range(3)])
        assert seen == [[], [], []]
        assert store.list() == ["d/0", "d/1", "d/2"]

    def test_one_content_that_fails_leaves_none_of_them(self, store: ByteStore) -> None:
        if not isinstance(store, SupportsPutAll):
            pytest.skip("writes one object after the other")

        def broken() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        store.put("d/2", b"old")
        with pytest.raises(ZeroDivisionError):
            store.put_all([("d/1", b"new"), ("d/2", b"new"), ("e/3", broken())])
        with pytest.raises(StoreError):
            store.put_all([("d/1", b"new"), ("../2", b"new")])
        assert store.list() == ["d/2"]
        assert store.get("d/2") == b"old"

    def test_several_writers_of_the_same_objects_at_once(self, store: ByteStore) -> None:
        keys = ["d/a", "e/b", "c"]
        barrier = threading.Barrier(3)
        failed: list[BaseException] = []

        def write(number: int) -> None:
            mine = self.reopen(store)
            try:
                barrier.wait()
                for _ in range(5):
                    put_all(mine, [(key, bytes([number]) * 50_000) for key in keys])
            except BaseException as error:  # noqa: BLE001 - reported by the test below
                failed.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert store.list() == sorted(keys)
        for key in keys:
            content = store.get(key)
            assert content == content[:1] * 50_000

    def test_deleting_several_objects(self, store: ByteStore) -> None:
        for key in ("a/1", "a/2", "b/c/3", "k", "kept/1"):
            store.put(key, b"x")
        delete_all(store, ["k", "a/1", "nothing", "b/c/3", "no/thing", "a/2", "a/2", "a/2/below", "kept"])
        delete_all(store, [])
        assert self.reopen(store).list() == ["kept/1"]
        assert children(store) == ["kept"]

    def test_each_deletion_comes_after_its_key_is_asked_for(self, store: ByteStore) -> None:
        """Whoever deletes makes sure before each one that he still may."""
        for number in range(4):
            store.put(f"d/{number}", b"x")

        def keys() -> Iterator[str]:
            yield "d/0"
            assert "d/0" not in store.list()
            yield "d/1"
            assert store.list() == ["d/2", "d/3"]
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            delete_all(store, keys())
        assert store.list() == ["d/2", "d/3"]

    @pytest.mark.parametrize(
        ("offset", "sizes", "expected"),
        [
            (0, [3, 2], [b"012", b"34"]),
            (2, [1, 0, 4], [b"2", b"", b"3456"]),
            (8, [1, 1], [b"8", b"9"]),
            (8, [1, 5, 2], [b"8", b"9....", b".."]),
            (10, [2], [b".."]),
            (99, [2, 1], [b"..", b"."]),
            (0, [], []),
        ],
    )
    def test_reading_into_memory(
        self, store: ByteStore, offset: int, sizes: list[int], expected: list[bytes]
    ) -> None:
        store.put("d/k", b"0123456789")
        memory = [bytearray(b"." * size) for size in sizes]
        count = read_into(store, "d/k", offset, [memoryview(part) for part in memory])
        assert memory == expected
        assert count == min(sum(sizes), max(0, 10 - offset))

    def test_reading_many_parts_of_wide_items(self, store: ByteStore) -> None:
        content = random.Random(1).randbytes(8 * 3000)
        store.put("k", content)
        parts = [memoryview(bytearray(16)).cast("Q") for _ in range(1500)]
        assert read_into(store, "k", 0, parts) == len(content)
        assert b"".join(parts) == content

    def test_a_large_object_comes_back(self, store: ByteStore) -> None:
        """Larger than what is written and read in one go, and of no round size."""
        piece = random.Random(2).randbytes(1 << 20)
        pieces = [b"head" * 17, piece] * 9 + [b"end"]
        content = b"".join(pieces)
        put_all(store, [("large", iter(pieces)), ("index", b"small")])
        again = self.reopen(store)
        assert again.size("large") == len(content)
        memory = bytearray(len(content))
        view = memoryview(memory)
        assert read_into(again, "large", 3, [view[:68], view[68:5000], view[5000:]]) == len(content) - 3
        assert view[:-3] == content[3:]

    @pytest.mark.parametrize("key", ["k", "race/1", "race/deep/er"])
    def test_one_of_many_creators_wins(self, store: ByteStore, key: str) -> None:
        barrier = threading.Barrier(4)
        won: list[int] = []

        def create(number: int) -> None:
            mine = self.reopen(store)
            barrier.wait()
            if mine.put_if_absent(key, str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get(key) == str(won[0]).encode()

    def test_a_reader_sees_whole_objects_only(self, store: ByteStore) -> None:
        contents = {bytes([i]) * 100_000 for i in range(8)}
        store.put("k", min(contents))
        done = threading.Event()
        seen: set[bytes] = set()

        def read() -> None:
            while not done.is_set():
                seen.add(self.reopen(store).get("k"))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for content in sorted(contents):
                store.put("k", (content[i : i + 9999] for i in range(0, len(content), 9999)))
        finally:
            done.set()
            reader.join()
        assert seen <= contents

    def test_creating_and_deleting_neighbours_at_once(self, store: ByteStore) -> None:
        """A store with directories removes empty ones; that must never hit a neighbour's write."""
        failed: list[BaseException] = []

        def work(number: int) -> None:
            draw = random.Random(number)
            mine = self.reopen(store)
            try:
                for i in range(40):
                    key = f"d/{draw.randrange(2)}/{number}-{i}"
                    mine.put(key, b"x")
                    assert mine.get(key) == b"x"
                    mine.delete(key)
            except BaseException as error:  # noqa: BLE001 - reported by the test below
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert store.list() == []

    def test_local_path_shows_the_object(self, store: ByteStore) -> None:
        if not isinstance(store, SupportsLocalPath):
            pytest.skip("keeps no files")
        store.put("a/b", b"bytes")
        assert store.local_path("a/b").read_bytes() == b"bytes"
        assert store.local_path("a") == store.local_path() / "a"
        with pytest.raises(StoreError):
            store.local_path("../a")

"""The faulty store does what it says, so that a crash test that passes has tested something."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unbroken.errors import ObjectMissing, StoreFull, StoreUnavailable
from unbroken.store.base import (
    SupportsDeleteAll,
    SupportsPutAll,
    SupportsReadInto,
    delete_all,
    put_all,
    read_into,
)
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Operation, Stopped


def save(store: FaultyStore) -> None:
    store.put("a", b"aaaa")
    store.get("a")
    store.put_if_absent("b", b"bbbb")
    store.delete("a")


def after(kind: Kind, at: int) -> tuple[dict[str, bytes], type[BaseException] | None]:
    inner = MemoryStore()
    error: type[BaseException] | None = None
    store = FaultyStore(inner, fault=Fault(kind, at))
    try:
        save(store)
    except BaseException as raised:  # noqa: BLE001 - a `Stopped` is what is looked for
        error = type(raised)
    assert store.fired
    return {key: inner.get(key) for key in inner.list()}, error


def test_without_a_fault_everything_passes_and_is_recorded() -> None:
    store = FaultyStore(MemoryStore())
    save(store)
    assert store.operations == [
        Operation("put", "a"),
        Operation("put_if_absent", "b"),
        Operation("delete", "a"),
    ]
    assert store.list() == ["b"]
    assert store.size("b") == 4
    assert store.get_range("b", 1, 2) == b"bb"
    assert not store.fired
    with pytest.raises(ObjectMissing):
        store.get("a")


def test_a_fault_that_is_never_reached_says_so() -> None:
    store = FaultyStore(MemoryStore(), fault=Fault(Kind.STOP_BEFORE, 3))
    save(store)
    assert not store.fired


@pytest.mark.parametrize(
    ("kind", "at", "left", "error"),
    [
        (Kind.STOP_BEFORE, 0, {}, Stopped),
        (Kind.STOP_BEFORE, 1, {"a": b"aaaa"}, Stopped),
        (Kind.STOP_AFTER, 1, {"a": b"aaaa", "b": b"bbbb"}, Stopped),
        (Kind.STOP_AFTER, 2, {"b": b"bbbb"}, Stopped),
        (Kind.TORN, 0, {"a": b"aa"}, Stopped),
        (Kind.TORN, 1, {"a": b"aaaa", "b": b"bb"}, Stopped),
        (Kind.TORN, 2, {"a": b"aaaa", "b": b"bbbb"}, Stopped),
        (Kind.UNAVAILABLE, 1, {"a": b"aaaa"}, StoreUnavailable),
        (Kind.LOST_RESPONSE, 1, {"a": b"aaaa", "b": b"bbbb"}, StoreUnavailable),
        (Kind.FULL, 1, {"a": b"aaaa"}, StoreFull),
        (Kind.FULL, 2, {"b": b"bbbb"}, None),
    ],
)
def test_faults(kind: Kind, at: int, left: dict[str, bytes], error: type[BaseException] | None) -> None:
    assert after(kind, at) == (left, error)


def test_it_can_do_what_the_store_can_and_no_more(tmp_path: Path) -> None:
    for ability in (SupportsPutAll, SupportsDeleteAll, SupportsReadInto):
        assert not isinstance(FaultyStore(MemoryStore()), ability)
        assert isinstance(FaultyStore(LocalStore(tmp_path)), ability)


def group(store: FaultyStore) -> None:
    store.put("old", b"old")
    put_all(store, [("a", b"aaaa"), ("b", (piece for piece in (b"bb", b"bb"))), ("c", b"cccc")])
    delete_all(store, ["old", "a"])


A, B, C, OLD = {"a": b"aaaa"}, {"b": b"bbbb"}, {"c": b"cccc"}, {"old": b"old"}


@pytest.mark.parametrize(
    ("kind", "at", "left", "error"),
    [
        (Kind.STOP_BEFORE, 1, OLD, Stopped),
        (Kind.STOP_AFTER, 1, OLD | A, Stopped),
        (Kind.STOP_BEFORE, 3, OLD | A | B, Stopped),
        (Kind.TORN, 2, OLD | A | {"b": b"bb"}, Stopped),
        (Kind.UNAVAILABLE, 3, OLD | A | B, StoreUnavailable),
        (Kind.LOST_RESPONSE, 2, OLD | A | B, StoreUnavailable),
        (Kind.FULL, 3, OLD, StoreFull),
        (Kind.STOP_AFTER, 4, A | B | C, Stopped),
        (Kind.STOP_BEFORE, 5, A | B | C, Stopped),
        (Kind.UNAVAILABLE, 5, A | B | C, StoreUnavailable),
        (Kind.STOP_BEFORE, 6, B | C, None),
    ],
)
def test_faults_among_several_objects(
    tmp_path: Path, kind: Kind, at: int, left: dict[str, bytes], error: type[BaseException] | None
) -> None:
    inner = LocalStore(tmp_path)
    store = FaultyStore(inner, fault=Fault(kind, at))
    raised: type[BaseException] | None = None
    try:
        group(store)
    except BaseException as caught:  # noqa: BLE001 - a `Stopped` is what is looked for
        raised = type(caught)
    assert raised is error
    assert store.fired is (error is not None)
    assert {key: inner.get(key) for key in inner.list()} == left


def test_several_objects_count_as_often_however_they_are_written(tmp_path: Path) -> None:
    one_by_one, together = FaultyStore(MemoryStore()), FaultyStore(LocalStore(tmp_path))
    group(one_by_one)
    group(together)
    assert one_by_one.operations == together.operations
    assert len(together.operations) == 6


def test_reading_into_memory_counts_where_that_is_wanted(tmp_path: Path) -> None:
    store = FaultyStore(
        LocalStore(tmp_path), fault=Fault(Kind.UNAVAILABLE, 0), counted=frozenset({"read_into"})
    )
    store.put("k", b"x")
    memory = bytearray(1)
    with pytest.raises(StoreUnavailable):
        read_into(store, "k", 0, [memoryview(memory)])
    assert read_into(store, "k", 0, [memoryview(memory)]) == 1
    assert memory == b"x"


def test_a_stopped_process_does_nothing_more() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, fault=Fault(Kind.STOP_BEFORE, 0))
    with pytest.raises(Stopped):
        store.put("a", b"")
    for call in (lambda: store.put("b", b""), lambda: store.get("a"), store.list):
        with pytest.raises(Stopped):
            call()
    assert inner.list() == []


def test_a_full_store_stays_full_and_can_be_emptied() -> None:
    inner = MemoryStore()
    inner.put("old", b"")
    store = FaultyStore(inner, fault=Fault(Kind.FULL, 0))
    for _ in range(2):
        with pytest.raises(StoreFull):
            store.put("a", b"")
    store.delete("old")
    assert store.list() == []


def test_reads_count_where_that_is_wanted() -> None:
    store = FaultyStore(MemoryStore(), fault=Fault(Kind.STOP_AFTER, 1), counted=frozenset({"get", "put"}))
    store.put("a", b"")
    with pytest.raises(Stopped):
        store.get("a")


@pytest.mark.parametrize(("kind", "written"), [(Kind.KILL_BEFORE, False), (Kind.KILL_AFTER, True)])
def test_a_real_kill(tmp_path: Path, kind: Kind, *, written: bool) -> None:
    script = (
        "import sys\n"
        "from unbroken.store.local import LocalStore\n"
        "from unbroken.testing.faulty_store import *\n"
        "FaultyStore(LocalStore(sys.argv[1]), fault=Fault(Kind[sys.argv[2]], 0)).put('a', b'x')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path), kind.name], check=False)
    assert ran.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == (["a"] if written else [])

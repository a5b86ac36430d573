"""Systems and stores that fail do what they say, so that what comes out well has been tested."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.network_disk import NetworkDisk, Quirk
from torture.returning_faults import Bounded, TooMany, Troubled
from unbroken.errors import StoreDenied, StoreFull, StoreUnavailable
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import ALL, Fault, FaultyStore, Kind


def calls_of(root: Path) -> list[tuple[str, str]]:
    """Return what one small write does."""
    counting = Troubled()
    LocalStore(root, system=counting, token=lambda: "0").put("a", b"x")
    return counting.made


class TestTroubled:
    def test_without_a_fault_it_only_counts(self, tmp_path: Path) -> None:
        calls = calls_of(tmp_path / "run")
        assert [name for name, _ in calls].count("replace") == 1
        assert ("create", ".tmp-0") in calls

    def test_a_call_fails_once_at_its_number_and_never_again(self, tmp_path: Path) -> None:
        at = [name for name, _ in calls_of(tmp_path / "first")].index("replace")
        system = Troubled(at, errno.EIO)
        store = LocalStore(tmp_path / "run", system=system)
        with pytest.raises(StoreUnavailable):
            store.put("a", b"x")
        assert system.fired
        assert store.list() == []
        store.put("a", b"x")
        assert store.get("a") == b"x"

    def test_what_is_full_for_ever_takes_no_write_any_more(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "run")
        store.put("a", b"x")
        full = LocalStore(tmp_path / "run", system=Troubled(0, errno.ENOSPC, for_ever=True))
        for _ in range(3):
            with pytest.raises(StoreFull):
                full.put("b", b"x")
        assert store.list() == ["a"]

    def test_a_call_that_has_happened_may_fail(self, tmp_path: Path) -> None:
        at = [name for name, _ in calls_of(tmp_path / "first")].index("mkdir")
        store = LocalStore(tmp_path / "run", system=Troubled(at, errno.EIO, after=True))
        with pytest.raises(StoreUnavailable):
            store.put("a", b"x")
        assert (tmp_path / "run").is_dir()

    def test_something_else_may_happen_there(self, tmp_path: Path) -> None:
        happened: list[bool] = []
        system = Troubled(2, happens=lambda: happened.append(True))
        LocalStore(tmp_path / "run", system=system).put("a", b"x")
        assert happened == [True]


def test_more_calls_than_are_permitted_are_no_end(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run", system=Bounded(3))
    with pytest.raises(TooMany):
        store.put("a", b"x")


class TestNetworkDisk:
    def test_a_link_that_is_sent_twice_exists_already_and_is_known_as_ones_own(self, tmp_path: Path) -> None:
        LocalStore(tmp_path / "run").put("there", b"x")
        system = NetworkDisk(Quirk.SENT_TWICE, 1)
        store = LocalStore(tmp_path / "run", system=system)
        assert store.put_if_absent("a", b"x") is True
        assert system.made[1] == ("link", "a")
        assert store.list() == ["a", "there"]

    def test_a_directory_is_listed_as_it_was(self, tmp_path: Path) -> None:
        LocalStore(tmp_path / "run").put("a", b"x")
        late = LocalStore(tmp_path / "run", system=NetworkDisk(Quirk.SEEN_LATE, 0))
        assert late.list() == []
        assert late.list() == ["a"]

    def test_a_file_that_is_removed_lives_on(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "run", system=NetworkDisk(Quirk.KEPT_OPEN, always=True))
        store.put("d/a", b"x")
        store.delete("d/a")
        assert store.list() == []
        assert [path.name[:4] for path in (tmp_path / "run" / "d").iterdir()] == [".nfs"]

    def test_a_quota_is_told_at_close(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "run", system=NetworkDisk(Quirk.TOLD_AT_CLOSE, 0))
        with pytest.raises(StoreFull):
            store.put("a", b"x")
        assert store.list() == []

    def test_a_stale_handle_is_opened_anew(self, tmp_path: Path) -> None:
        LocalStore(tmp_path / "run").put("a", b"x")
        system = NetworkDisk(Quirk.STALE, 1)
        assert LocalStore(tmp_path / "run", system=system).get("a") == b"x"
        assert system.fired


class TestKindsOfAnObjectStore:
    @pytest.fixture
    def faulty(self) -> Callable[[Kind, int], FaultyStore]:
        inner = MemoryStore()
        inner.put("k", b"0123")
        return lambda kind, at: FaultyStore(inner, fault=Fault(kind, at), counted=ALL)

    def test_a_reading_is_cut_short(self, faulty: Callable[[Kind, int], FaultyStore]) -> None:
        store = faulty(Kind.TRUNCATED, 0)
        assert store.get("k") == b"01"
        assert store.get("k") == b"0123"

    def test_of_a_doubled_request_the_second_answer_is_given(
        self, faulty: Callable[[Kind, int], FaultyStore]
    ) -> None:
        store = faulty(Kind.DUPLICATE, 0)
        assert store.put_if_absent("new", b"x") is False
        assert store.inner.get("new") == b"x"

    def test_a_late_request_undoes_what_came_between(
        self, faulty: Callable[[Kind, int], FaultyStore]
    ) -> None:
        store = faulty(Kind.DELAYED, 0)
        store.put("k", b"late")
        store.put("k", b"newer")
        assert store.get("k") == b"late"

    def test_an_outage_lasts_until_it_is_mended(self, faulty: Callable[[Kind, int], FaultyStore]) -> None:
        store = faulty(Kind.OUTAGE, 0)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.get("k")
        store.mend()
        assert store.get("k") == b"0123"

    def test_a_listing_does_not_show_what_is_new(self, faulty: Callable[[Kind, int], FaultyStore]) -> None:
        store = faulty(Kind.STALE, 1)
        store.put("new", b"x")
        assert store.list() == ["k"]
        assert store.list() == ["k", "new"]


def test_a_disk_that_is_read_only_for_ever_denies(tmp_path: Path) -> None:
    LocalStore(tmp_path / "run").put("a", b"x")
    store = LocalStore(tmp_path / "run", system=Troubled(0, errno.EROFS, for_ever=True))
    with pytest.raises(StoreDenied):
        store.put("b", b"x")
    assert store.get("a") == b"x"

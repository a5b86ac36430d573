"""What the bench of faults has found in the stores, each with the least that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import StoreUnavailable
from unbroken.store.base import append
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.store.publish import TEMPORARY
from unbroken.testing.faulty_store import ALL, Fault, FaultyStore, Kind


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store that has written."""
    made = LocalStore(tmp_path / "run")
    made.put("commits/1", b"x")
    return made


class TestADirectoryThatIsMovedAway:
    @pytest.fixture(autouse=True)
    def _moved(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "run").rename(tmp_path / "away")

    def test_is_not_listed_as_empty(self, store: LocalStore) -> None:
        """Whoever believes that deletes what the commits need, or begins anew."""
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.list("commits")
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.children()

    def test_has_no_objects_that_are_missing(self, store: LocalStore) -> None:
        """A missing object would be a damaged checkpoint, or a claim that nobody has made."""
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.get("commits/1")
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.size("epochs/2")

    def test_does_not_say_that_something_was_deleted(self, store: LocalStore) -> None:
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.delete("commits/1")

    def test_is_the_same_store_when_it_is_back(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "away").rename(tmp_path / "run")
        assert store.get("commits/1") == b"x"
        store.delete("commits/1")
        assert store.list() == []


def test_leftovers_go_at_a_start_although_the_clock_was_set_back(store: LocalStore, tmp_path: Path) -> None:
    left = tmp_path / "run" / "commits" / f"{TEMPORARY}0"
    left.write_bytes(b"cut off")
    earlier = LocalStore(tmp_path / "run", clock=lambda: 1000.0)
    assert earlier.sweep(older_than=60.0) == []
    assert earlier.sweep(older_than=0.0) == [f"commits/{TEMPORARY}0"]
    assert not left.exists()


def test_an_answer_that_is_cut_short_takes_no_lines_with_it() -> None:
    """Where a store cannot append, all lines are read and written again."""
    inner = MemoryStore()
    for number in range(4):
        append(inner, "history.jsonl", b"line %d\n" % number)
    cut_short = FaultyStore(inner, fault=Fault(Kind.TRUNCATED, 2), counted=ALL)
    with pytest.raises(StoreUnavailable, match="arrived"):
        append(cut_short, "history.jsonl", b"line 4\n")
    assert cut_short.fired
    append(cut_short, "history.jsonl", b"line 4\n")
    assert inner.get("history.jsonl") == b"".join(b"line %d\n" % number for number in range(5))

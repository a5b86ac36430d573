"""What is recorded of a directory, and which disks are made of it."""

from __future__ import annotations

from pathlib import Path

from torture.disk_states import disk_states
from torture.disks import taken
from torture.life import Promises, temporary_tokens, whole
from torture.recording import BASE, Event, Mark, Named, Recording, Renamed, Synced, Unnamed, Wrote
from unbroken.store.local import LocalStore


def trees(events: list[Event], at: int) -> list[dict[str, bytes | None]]:
    """Return the disks that are possible after so many events."""
    return [state.tree for state in disk_states(events) if state.at == at]


def test_the_last_recorded_disk_is_the_one_that_is_there(tmp_path: Path) -> None:
    """Nothing that the store does to its directory escapes the recording."""
    recording = Recording(tmp_path)
    whole(LocalStore(tmp_path / "run", token=temporary_tokens(1), system=recording), Promises())
    last = [state for state in disk_states(recording.events) if state.at == len(recording.events)]
    there = taken(tmp_path)
    del there["run/lock"]  # belongs to the operating system's lock
    assert there in [state.tree for state in last if state.detail == "all"]


def test_what_is_not_synced_may_be_lost_and_what_is_may_not() -> None:
    events: list[Event] = [
        Named(BASE, "file", 1),
        Synced(BASE),
        Wrote(1, 0, b"abcdef"),
        Synced(1),
    ]
    before, after = trees(events, 3), trees(events, 4)
    assert {"file": b""} in before
    assert {"file": b"abc"} in before
    assert {"file": bytes(6)} in before
    assert {"file": b"abcdef"} in before
    assert after == [{"file": b"abcdef"}]


def test_a_file_that_is_synced_may_have_no_name_before_its_directory_is() -> None:
    events: list[Event] = [Named(BASE, "file", 1), Wrote(1, 0, b"a"), Synced(1), Synced(BASE)]
    assert {} in trees(events, 3)
    assert trees(events, 4) == [{"file": b"a"}]


def test_a_name_may_arrive_before_the_bytes_of_its_file() -> None:
    events: list[Event] = [
        Named(BASE, "new", 1),
        Named(BASE, "old", 2),
        Wrote(2, 0, b"old"),
        Synced(2),
        Synced(BASE),
        Wrote(1, 0, b"new"),
        Renamed(BASE, "new", "old"),
    ]
    possible = trees(events, 7)
    assert {"old": b""} in possible
    assert {"old": b"new"} in possible
    assert {"old": b"old", "new": b""} in possible
    assert all("old" in tree for tree in possible), "a rename never leaves a name without a file"


def test_a_directory_that_is_not_durable_takes_what_is_in_it_along() -> None:
    events: list[Event] = [
        Named(BASE, "directory", 1, is_directory=True),
        Named(1, "file", 2),
        Wrote(2, 0, b"a"),
        Synced(2),
        Synced(1),
        Synced(BASE),
    ]
    assert {} in trees(events, 5)
    assert trees(events, 6) == [{"directory": None, "directory/file": b"a"}]


def test_changes_of_a_directory_arrive_without_each_other() -> None:
    events: list[Event] = [
        Named(BASE, "a", 1),
        Synced(1),
        Synced(BASE),
        Unnamed(BASE, "a"),
        Named(BASE, "b", 2),
    ]
    assert {frozenset(tree) for tree in trees(events, 5)} == {
        frozenset(),
        frozenset("a"),
        frozenset("b"),
        frozenset("ab"),
    }


def test_the_same_disk_with_other_promises_is_another_fault() -> None:
    events: list[Event] = [Named(BASE, "a", 1), Synced(BASE), Mark("promised")]
    second, third = ([state for state in disk_states(events) if state.at == at][-1] for at in (2, 3))
    assert second.tree == third.tree
    assert second.digest != third.digest
    assert third.marks == ("promised",)


def test_a_write_in_place_that_waits_for_the_disk_can_be_torn_until_it_returns(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    store = LocalStore(tmp_path / "run", system=recording)
    store.note("pending.json", b"first")
    done = len(recording.events)
    store.note("pending.json", b"second")
    states = [*disk_states(recording.events)]
    contents = {state.tree["run/pending.json"] for state in states if state.at == done + 1}
    assert b"second".ljust(4096) in contents
    assert b"first".ljust(4096) in contents
    assert len(contents) > 2

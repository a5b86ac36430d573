"""Ranks on a disk without room for the parts of all: it is what a rank says of its own part that costs checkpoints.

The disks are real ones of some megabytes, and so are the kills. Mounting needs root. Where it is not permitted these tests
are skipped by name; under CI that is an error.
"""

from __future__ import annotations

import errno
import re
import signal
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import Launch, assert_whole, finish
from tests.engine.ranks import steps_of as steps_of_ranks
from tests.repo.parties import SECONDS, Parties, View, at_once
from tests.repo.states import meta, noise, snapshot
from tests.store.filling import fill, free
from tests.store.test_real_conditions import mounted
from unbroken.engine import full_disk
from unbroken.engine.keeping import Keeping
from unbroken.errors import RankMissing, StoreFull, StoreUnavailable
from unbroken.format.buffers import Content
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.testing.faulty_system import FailingSystem, fail

LENGTH = 12_000
"""Weights of a rank; there are as many momenta."""
PART = 200_000
"""Bytes of what each rank has of a checkpoint, which are noise."""


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "unbroken-test") as where:
        yield where


class Asking(LocalStore):
    """The store of rank 0; tells when the other is asked for its part, and all of rank 0's own is durable.

    Where it is to be `crowded`, others take what there is as soon as rank 0 has given a save up.
    """

    def __init__(self, disk: Path) -> None:
        super().__init__(disk / "job")
        self._disk = disk
        self.asked = threading.Event()
        self.crowded = False

    def get(self, key: str) -> bytes:
        if re.search(r"/saves/\d+/000001\.json$", key):
            self.asked.set()
        return super().get(key)

    def say(self, key: str, data: bytes) -> bool:
        said = super().say(key, data)
        if self.crowded and key.endswith("/outcome.json"):
            fill(self._disk)
        return said


class Crowded(LocalStore):
    """The store of rank 1, beside which others take at once what a write that failed has given back."""

    def __init__(self, disk: Path) -> None:
        super().__init__(disk / "job")
        self._disk = disk

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        try:
            super().put_all(items)
        except StoreFull:
            fill(self._disk)
            raise


class Pair:
    """Two ranks that have saved the steps 1, 2 and 3."""

    def __init__(self, disk: Path, other: ByteStore) -> None:
        self.store = Asking(disk)
        self._parties = Parties(self.store, other)
        assert self._parties.begin() == [None, None]
        assert [self.save(step) for step in (1, 2, 3)] == [["", None]] * 3

    def save(self, step: int, *, silent: bool = False) -> list[object]:
        """Save a step; rank 1, unless it is `silent`, begins when rank 0 has done its part."""
        writer, follower = self._parties.writer, self._parties.follower
        assert writer is not None
        assert follower is not None
        self.store.asked.clear()

        def first() -> str:
            return full_disk.write(part(0, step), meta(step), writer.checkpoints, Keeping(keep_last=9))

        def second() -> None:
            assert self.store.asked.wait(SECONDS)
            if not silent:
                follower.checkpoints.write(part(1, step), meta(step))

        return at_once(first, second, time_of=self._parties.time)

    def close(self) -> None:
        writer = self._parties.writer
        assert writer is not None
        writer.close()


@contextmanager
def pair_on(disk: Path, other: ByteStore | None = None) -> Generator[Pair, None, None]:
    """Give two ranks of a run on `disk`, of which rank 1 sees `other`."""
    pair = Pair(disk, LocalStore(disk / "job") if other is None else other)
    try:
        yield pair
    finally:
        pair.close()


def part(rank: int, step: int) -> Snapshot:
    return snapshot(noise(100, step), noise(PART, 1000 * rank + step), step=step + rank)


def steps(disk: Path) -> list[int]:
    return [commit.step for commit in Repository.open(disk, "job").commits()]


def test_where_only_the_other_rank_finds_no_room_the_oldest_goes_and_the_next_save_is_made(
    disk: Path,
) -> None:
    with pair_on(disk) as pair:
        fill(disk, but=PART * 3 // 2)
        error, other = pair.save(4)
        left = steps(disk)
        assert pair.save(5) == ["", None]
    assert isinstance(error, StoreFull), error
    assert error.message.startswith("Rank 1 has not written its part: No room is left")
    assert error.message.endswith(
        " Of the run the checkpoint of step 1 went, so that the next save has room."
    )
    assert isinstance(error.__cause__, RankMissing)
    assert (error.__cause__.ranks, error.__cause__.full) == ((1,), True)
    assert isinstance(other, StoreFull), other
    assert left == [3, 2]
    assert steps(disk) == [5, 3, 2]


def test_a_rank_that_fails_for_another_reason_costs_no_checkpoint_although_the_disk_is_nearly_full(
    disk: Path,
) -> None:
    begun = threading.Event()
    other_store = View(
        LocalStore(disk / "job"), fails=lambda key: begun.is_set() and key.startswith("packs/")
    )
    with pair_on(disk, other_store) as pair:
        begun.set()
        fill(disk, but=PART * 3 // 2)
        error, other = pair.save(4)
    assert isinstance(other, StoreUnavailable), other
    assert isinstance(error, RankMissing), error
    assert (error.ranks, error.full) == ((1,), False)
    assert "Rank 1 has not written its part" in error.message
    assert steps(disk) == [3, 2, 1]


def test_a_rank_that_says_nothing_costs_no_checkpoint_although_the_disk_is_nearly_full(disk: Path) -> None:
    with pair_on(disk) as pair:
        fill(disk, but=PART * 3 // 2)
        error, _ = pair.save(4, silent=True)
    assert isinstance(error, RankMissing), error
    assert (error.ranks, error.full) == ((1,), False)
    assert "rank 1 said nothing" in error.message
    assert steps(disk) == [3, 2, 1]


def test_a_rank_without_a_free_byte_says_so_in_the_place_of_the_ballast(disk: Path) -> None:
    with pair_on(disk, Crowded(disk)) as pair:
        fill(disk, but=PART * 3 // 2)
        error, other = pair.save(4)
    assert isinstance(other, StoreFull), other
    assert isinstance(error, StoreFull), error
    assert "Of the run the checkpoint of step 1 went" in error.message
    assert steps(disk) == [3, 2]


def test_without_a_free_byte_rank_0_makes_room_for_the_other(disk: Path) -> None:
    """All that a save takes is missing then, which tells of no quota."""
    with pair_on(disk) as pair:
        fill(disk, but=PART * 3 // 2)
        pair.store.crowded = True
        error, _ = pair.save(4)
        pair.store.crowded = False
        assert isinstance(error, StoreFull), error
        assert "Of the run the checkpoints of steps 1 and 2 went" in error.message
        assert steps(disk) == [3]
        assert pair.save(5) == ["", None]


def test_a_rank_that_met_a_quota_of_its_own_is_only_named(disk: Path) -> None:
    met, refuses = threading.Event(), fail("create", errno.EDQUOT, path=".tmp-", times=1)
    system = FailingSystem(lambda name, path: refuses(name, path) if met.is_set() else 0)
    with pair_on(disk, LocalStore(disk / "job", system=system)) as pair:
        met.set()
        error, other = pair.save(4)
    assert isinstance(other, StoreFull), other
    assert isinstance(error, RankMissing), error
    assert (error.ranks, error.full) == ((1,), True)
    assert steps(disk) == [3, 2, 1]


def test_a_rank_that_is_killed_on_a_nearly_full_disk_is_named_and_no_checkpoint_goes(disk: Path) -> None:
    root, hurry = disk / "run", disk.parent / "hurry"
    options: dict[str, Any] = {"length": LENGTH, "keep_last": 9, "wait": True}
    with Launch() as launch:
        launch.start(root, 0, 2, hurry=str(hurry), stop=r"saves/\d+4/order\.json", **options)
        launch.start(root, 1, 2, die=12, **options)
        launch.stopped(0)  # at step 15
        assert launch.end(1).status == -signal.SIGKILL
        each = 2 * LENGTH * 8  # bytes of one rank, of noise
        assert free(disk) > 2 * each
        fill(disk, but=each * 3 // 2)
        hurry.touch()
        launch.go_on(0)
        ended = launch.end(0)
    assert ended.error["error"] == "SaveFailed"
    assert "rank 1 said nothing for 60 seconds" in ended.error["message"]
    assert "went" not in ended.error["message"]
    assert steps_of_ranks(root) == [10, 5, 0]
    assert_whole(root)
    for filler in disk.glob("of somebody else*"):
        filler.unlink()
    finish(root, 2, **options)

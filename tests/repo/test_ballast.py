"""The room that a run holds for its records, on disks that really are full.

Mounting needs root. Where it is not permitted these tests are skipped by name; under CI that is an error.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.repo.states import meta, noise, snapshot
from tests.store.filling import fill, give_back
from tests.store.test_real_conditions import mounted
from unbroken.errors import StoreFull
from unbroken.format import layout
from unbroken.repo import ballast
from unbroken.repo.repository import Repository
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind
from unbroken.testing.faulty_system import FailingSystem, fail

KIB = 1024


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "unbroken-test") as where:
        yield where


def held(disk: Path) -> int:
    path = disk / "job" / layout.BALLAST
    return path.stat().st_blocks * 512 if path.exists() else 0


def test_a_run_reserves_it_when_it_begins_and_it_is_of_noise(disk: Path) -> None:
    with Repository.open(disk, "job", create=True).writer():
        assert held(disk) == ballast.SIZE
    with Repository.open(disk, "other", create=True).writer():
        pass
    one, other = ((disk / run / layout.BALLAST).read_bytes() for run in ("job", "other"))
    assert one != other, "else a file system that finds what is there twice would give no room for it"
    assert len(set(one)) == 256


def test_a_run_without_one_gets_it_at_its_next_start(disk: Path) -> None:
    with Repository.open(disk, "job", create=True).writer():
        pass
    (disk / "job" / layout.BALLAST).unlink()
    with Repository.open(disk, "job").writer():
        pass
    assert held(disk) == ballast.SIZE


@pytest.mark.parametrize(
    ("room", "taken"), [(0, 0), (31, 0), (32, 16), (64, 32), (127, 32), (128, 64), (512, 64)]
)
def test_it_takes_no_more_than_half_of_what_is_left(disk: Path, room: int, taken: int) -> None:
    store = LocalStore(disk / "job")
    store.put("something", b"")
    fill(disk, but=room * KIB)
    ballast.reserve(store, seed="a")
    assert held(disk) == taken * KIB
    ballast.reserve(store, seed="a")
    assert held(disk) >= taken * KIB, "what is there does not get smaller"


def test_it_is_given_up_a_slice_at_a_time_and_for_what_needs_it_only(disk: Path) -> None:
    store = LocalStore(disk / "job")
    store.put("something", b"")
    ballast.reserve(store, seed="a")
    fill(disk)
    for left in (48, 48, 48, 48, 32):  # four blocks a slice, one of which is the record's
        ballast.spending(store, lambda: store.put(f"records/{len(store.list('records'))}", b"x"))
        assert held(disk) == left * KIB
    ballast.spending(store, lambda: store.put("records/0", bytes(20 * KIB)))
    assert held(disk) == 16 * KIB
    with pytest.raises(StoreFull) as caught:
        ballast.spending(store, lambda: store.put("records/large", bytes(99 * KIB)))
    assert f"Free at least {2 * ballast.SIZE:,} bytes there." in caught.value.hint
    assert str(disk / "job") in caught.value.hint


def test_starts_that_save_nothing_and_a_prune_work_without_a_free_byte(disk: Path) -> None:
    repository = Repository.open(disk, "job", create=True)
    with repository.writer() as writer:
        for step in range(4):
            writer.write(snapshot(noise(100_000, step), step=step), meta(step))
    for _ in range(2):
        fill(disk)
        with repository.writer() as writer:
            assert len(writer.checkpoints.commits()) == 4
    fill(disk)
    done = unbroken("prune", disk, "--keep-last", 2, cwd=disk)
    assert done.code == 0, done.err
    assert [commit.step for commit in repository.commits()] == [3, 2]
    assert held(disk) == ballast.SIZE, "there is room again"
    assert unbroken("verify", disk, cwd=disk).code == 0


def test_where_it_is_used_up_the_error_says_what_to_free_and_that_is_enough(disk: Path) -> None:
    repository = Repository.open(disk, "job", create=True)
    with repository.writer() as writer:
        for step in range(4):
            writer.write(snapshot(noise(100_000, step), step=step), meta(step))
    (disk / "job" / layout.BALLAST).unlink()
    filler = fill(disk)
    for _ in range(2):
        with pytest.raises(StoreFull) as caught:
            repository.writer()
        assert "Free at least 131,072 bytes there." in caught.value.hint
        assert "--keep-last 1" in caught.value.hint
    assert len(repository.commits()) == 4
    give_back(filler, 131_072)
    assert unbroken("prune", disk, "--keep-last", 1, cwd=disk).code == 0
    with repository.writer() as writer:
        assert [commit.step for commit in writer.checkpoints.commits()] == [3]


def test_a_quota_is_met_like_a_full_disk(tmp_path: Path) -> None:
    """The disk has room, as its numbers say; this user has none."""
    used_up = fail("fsync", errno.EDQUOT, path=".tmp-", times=1)
    store = LocalStore(tmp_path, system=FailingSystem(used_up))
    ballast.reserve(LocalStore(tmp_path), seed="a")
    ballast.spending(store, lambda: store.put("record", b"x"))
    assert store.size(layout.BALLAST) == ballast.SIZE - ballast.SLICE
    always = LocalStore(tmp_path, system=FailingSystem(fail("fsync", errno.EDQUOT, path=".tmp-")))
    ballast.lighten(always)
    ballast.reserve(always, seed="a")
    assert store.size(layout.BALLAST) == ballast.SIZE - 2 * ballast.SLICE, "and that is no error"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_bucket_has_none() -> None:
    store = MemoryStore()
    ballast.reserve(store, seed="a")
    assert store.list() == []
    assert not ballast.lighten(store)


def test_a_bucket_whose_quota_is_used_up_says_so_in_its_own_words() -> None:
    store = FaultyStore(MemoryStore(), fault=Fault(Kind.FULL, 0))
    with pytest.raises(StoreFull) as caught:
        ballast.spending(store, lambda: store.put("record", b"x"))
    assert caught.value.__cause__ is None, "an error that is its own cause is no chain"
    assert len(store.operations) == 1

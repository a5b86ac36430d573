"""A training on a disk that gets full: the oldest checkpoints go, the newest is saved, and the end is the undisturbed one.

The disks are real ones of some megabytes, and so are the kills. Mounting needs root. Where it is not permitted these tests
are skipped by name; under CI that is an error.
"""

from __future__ import annotations

import errno
import re
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.engine.children import die, in_child
from tests.engine.ranks import assert_whole, differing, finish, go, results
from tests.engine.ranks import steps_of as steps_of_ranks
from tests.engine.runs import repository, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from tests.repo.rings import Ring
from tests.repo.states import assert_sound, assert_swept, meta, noise, process, snapshot
from tests.store.filling import fill, give_back
from tests.store.test_real_conditions import mounted
from unbroken.engine import full_disk
from unbroken.engine.full_disk import DiskFullWarning
from unbroken.engine.keeping import Keeping
from unbroken.errors import AmbiguousCommit, SaveFailed, StoreFull, StoreUnavailable
from unbroken.format import layout
from unbroken.format.buffers import Content, pieces
from unbroken.repo import ballast, pins
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Base, Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.testing.faulty_system import FailingSystem, Intercepted, fail, os_error

T = TypeVar("T")
WIDTH = 320
"""A checkpoint takes 0.8 MB of weights, which are noise."""


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    # Of six checkpoints and a half, so that it does not depend on how long the documents beside the weights are.
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=5500k", "unbroken-test") as where:
        yield where


def life(
    disk: Path, *, until: int, killed: bool = False, before: Callable[[], object] = int, **settings: Any
) -> None:
    """Train in a process of its own, from where the run goes on; it ends by a kill, or in order.

    `before` is called when the training goes on. What is warned of comes to `disk.parent / "said"`, and the end of
    a training to `disk.parent / "end"`.
    """

    def body() -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            training = Training(width=WIDTH)
            engine = engine_of(training, disk, **settings)
            report = engine.resume()
            before()
            train(engine, training, start=report.step, until=until)
            if not killed:
                engine.save(until, reason="asked for", wait=True)
                engine.close()
        lines = [str(one.message) for one in said if isinstance(one.message, DiskFullWarning)]
        disk.parent.joinpath("said").write_text("\n".join(lines))
        disk.parent.joinpath("end").write_text(repr(training.digest()))
        if killed:
            die()

    assert in_child(body) == (-signal.SIGKILL if killed else 0)


def said(disk: Path) -> list[str]:
    return disk.parent.joinpath("said").read_text().splitlines()


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_a_disk_too_small_for_what_is_to_be_kept_costs_the_oldest_and_the_end_is_the_undisturbed_one(
    disk: Path, writer: str
) -> None:
    options: dict[str, Any] = {"keep_last": 9, "writer": writer}
    life(disk, until=45, killed=True, **options)
    assert steps_of(disk) == [40, 30, 20, 10, 0]
    assert said(disk) == []
    life(disk, until=85, killed=True, **options)
    assert steps_of(disk) == [80, 70, 60, 50, 40, 30], "no more fit, and the oldest have gone"
    (told,) = said(disk)  # that of the save before the kill comes too late
    assert told == (
        "The disk was full: the checkpoints of steps 0 and 10 went, so that step 70 could be saved. Keep fewer"
        " (keep_last), or give the run more room."
    )
    life(disk, until=93, **options)
    assert steps_of(disk)[:3] == [93, 90, 80]
    run = repository(disk)
    assert [run.verify(commit) for commit in run.commits()] == [[]] * len(run.commits())
    end = disk.parent.joinpath("end").read_text()
    assert end == repr(undisturbed(93, width=WIDTH))
    assert end != repr(undisturbed(93, width=WIDTH, seed=2))


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_without_a_free_byte_a_killed_training_starts_saves_and_ends_as_the_undisturbed_one(
    disk: Path, writer: str
) -> None:
    life(disk, until=45, killed=True, writer=writer)
    fill(disk)
    life(disk, until=65, killed=True, writer=writer)
    assert steps_of(disk) == [60, 50, 40, 30]
    assert "of steps 0, 10 and 20 went, so that step 50 could be saved" in said(disk)[0]
    assert (disk / "run" / layout.BALLAST).stat().st_size == ballast.SIZE, "there is room for it again"
    fill(disk)
    life(disk, until=73, writer=writer)
    assert disk.parent.joinpath("end").read_text() == repr(undisturbed(73, width=WIDTH))


def test_a_smaller_keep_last_is_a_cure(disk: Path) -> None:
    life(disk, until=45, killed=True)
    fill(disk)
    life(disk, until=55, killed=True, keep_last=2)
    assert said(disk) == [], "nothing went but what the settings no longer keep"
    assert steps_of(disk) == [50, 40]


def test_where_it_would_be_in_vain_nothing_goes_and_the_error_says_what_has_to_be_freed(disk: Path) -> None:
    life(disk, until=25, killed=True)
    hold(disk, steps={10, 0})
    filler = fill(disk, but=300_000)
    text = grown(disk, numbers=10)
    found = re.search(
        r"The checkpoint takes ([\d,]+) bytes and ([\d,]+) are free, and no older checkpoint can go for it\."
        r" Free ([\d,]+) bytes there, then start again\.",
        text,
    )
    assert found is not None, text
    needs, has, missing = (int(number.replace(",", "")) for number in found.groups())
    assert missing > needs - has > 500_000
    assert steps_of(disk) == [20, 10, 0]
    give_back(filler, missing)
    assert grown(disk, numbers=10) == ""
    assert steps_of(disk) == [21, 20, 10, 0]


@pytest.mark.parametrize("cure", ["the smaller", "the larger"])
def test_both_cures_that_the_error_names_do_what_it_says(disk: Path, cure: str) -> None:
    life(disk, until=25, killed=True)
    filler = fill(disk, but=200_000)
    text = grown(disk, numbers=200_000)
    assert steps_of(disk) == [20, 10, 0]
    found = re.search(
        r"may go would give ([\d,]+), so they stay\. Free ([\d,]+) bytes there, then start again: with these, and"
        r" without those checkpoints, it is saved\. With ([\d,]+) they stay\.",
        text,
    )
    assert found is not None, text
    gives, less, more = (int(number.replace(",", "")) for number in found.groups())
    assert more - less == gives > 800_000
    give_back(filler, less if cure == "the smaller" else more)
    assert grown(disk, numbers=200_000) == ""
    assert steps_of(disk) == ([21, 20] if cure == "the smaller" else [21, 20, 10, 0])


def test_the_newest_that_is_whole_stays_however_many_damaged_ones_came_after_it(disk: Path) -> None:
    life(disk, until=45, killed=True)
    fill(disk, but=300_000)

    def rot() -> None:  # while the training goes on, so that nobody has noticed
        packs = sorted(
            (disk / "run" / layout.PACKS).rglob("*.pack"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in packs[-2:]:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(bytes(data))

    life(disk, until=55, killed=True, before=rot)
    assert steps_of(disk) == [50, 40, 30, 20], "of steps 40 and 30 not all can be read"


def test_the_step_that_every_start_is_sent_to_stays(disk: Path) -> None:
    life(disk, until=35, killed=True)
    fill(disk)
    life(disk, until=25, killed=True, resume=10)
    assert steps_of(disk)[-1] == 10, (
        "the checkpoint of step 0 went, and that of step 20 before that of step 10"
    )


def test_what_the_save_builds_on_stays_although_it_is_not_the_newest(tmp_path: Path) -> None:
    """After a start from an older step only the rows are captured that are new since then."""
    with mounted(tmp_path / "large", "-t", "tmpfs", "-o", "size=16m", "unbroken-test") as disk:
        ring, run = Ring(200, weights=1_200_000), Repository.open(disk, "run", create=True)
        bases: list[Base | None] = []
        with run.writer() as writer:
            for _ in range(4):
                ring.train(20)
                state = ring.changed()
                writer.write(state, meta(ring.step))
                ring.saved(state)
                bases.append(ring._base)
            ring.train(10)
            ring._base = bases[1]
            ring._written |= set(range(40, 80))
            fill(disk)
            told = full_disk.write(ring.changed(), meta(9), writer.checkpoints, Keeping(keep_last=9))
        assert told.startswith(
            "The disk was full: the checkpoints of steps 1 and 3 went, so that step 9 could be"
        )
        assert [commit.step for commit in run.commits()] == [9, 4, 2]
        assert [run.verify(commit) for commit in run.commits()] == [[]] * 3
        rows = run.load(run.commits()[0]).components["replay_buffer"]
        assert rows.content(0).tobytes() == ring.data.tobytes()


def test_a_quota_is_met_like_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free on the disk says nothing then: so much goes as the save takes."""
    run = Repository(LocalStore(disk / "run", system=Quota()), "run")
    monkeypatch.setattr(ballast, "free_bytes", lambda _: 1 << 40)
    with run.writer() as writer:
        for step in range(4):
            writer.write(snapshot(noise(800_000, step), step=step), meta(step))
        fill(disk, but=300_000)
        state = snapshot(noise(800_000, 9), step=9)
        with pytest.raises(StoreFull, match=r"^No quota is left"):
            writer.write(state, meta(9))
        told = full_disk.write(state, meta(9), writer.checkpoints, Keeping(keep_last=9))
        assert "the checkpoints of steps 0 and 1 went" in told
        assert [commit.step for commit in run.commits()] == [9, 3, 2]
        state = snapshot(noise(4_000_000, 10), step=10)
        with pytest.raises(
            StoreFull, match=r"^No quota is left.*The checkpoint takes 4,\d\d\d,\d{3} bytes\. All older"
        ):
            full_disk.write(state, meta(10), writer.checkpoints, Keeping(keep_last=9))
        assert [commit.step for commit in run.commits()] == [9, 3, 2]


def test_a_bucket_whose_quota_is_used_up_loses_its_oldest_and_has_no_ballast() -> None:
    store = Limited(MemoryStore(), most=350_000)
    run = Repository.over(store, "run", create=True)
    with run.writer() as writer:
        for step in range(3):
            writer.write(snapshot(noise(100_000, step), step=step), meta(step))
        state = snapshot(noise(100_000, 9), step=9)
        told = full_disk.write(state, meta(9), writer.checkpoints, Keeping(keep_last=9))
        assert "steps 0 and 1 went" in told
        assert [commit.step for commit in run.commits()] == [9, 2]
    assert layout.BALLAST not in store.list()


@pytest.mark.parametrize("kind", [Kind.STOP_BEFORE, Kind.STOP_AFTER, Kind.UNAVAILABLE, Kind.LOST_RESPONSE])
def test_a_crash_or_a_failure_at_any_step_of_it_leaves_a_run_that_goes_on(kind: Kind) -> None:
    counting = FaultyStore(Limited(MemoryStore(), most=350_000))
    prepared = _met(counting)
    assert sum(operation.name == "delete" for operation in counting.operations) > 10
    saved = 0
    for at in range(prepared, len(counting.operations)):
        inner = Limited(MemoryStore(), most=350_000)
        faulty = FaultyStore(inner, fault=Fault(kind, at))
        with suppress(Stopped, StoreUnavailable, AmbiguousCommit):
            _met(faulty)
        assert faulty.fired
        run = Repository.over(inner, "run", create=True)
        assert_sound(run)
        with run.writer(owner=process(2)) as writer:
            assert_swept(run)
            assert run.commits()[0].step in (2, 9)
            saved += run.commits()[0].step == 9
            full_disk.write(_state(10), meta(10), writer.checkpoints, Keeping(keep_last=9))
        assert run.commits()[0].step == 10
        assert_sound(run)
    assert saved > 0


def _state(step: int) -> Snapshot:
    return snapshot(noise(100_000, step), step=step)


def _met(store: FaultyStore) -> int:
    """Write three checkpoints, and one more for which there is no room; return how many operations came before that."""
    with Repository.over(store, "run", create=True).writer(owner=process(1)) as writer:
        for step in range(3):
            writer.write(_state(step), meta(step))
        prepared = len(store.operations)
        full_disk.write(_state(9), meta(9), writer.checkpoints, Keeping(keep_last=9))
    return prepared


def test_of_several_ranks_the_first_makes_room_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """All have given the save up together by then."""
    options: dict[str, Any] = {"total": 25, "length": 60_000, "keep_last": 9, "wait": True}
    finish(tmp_path / "undisturbed", 2, **options)
    with mounted(tmp_path / "run", "-t", "tmpfs", "-o", "size=4m", "unbroken-test") as root:
        ended = go(root, 2, **options)
        assert [one.error["error"] for one in ended] == ["SaveFailed"] * 2
        assert (
            "Of the run the checkpoints of steps 0, 5 and 10 went, so that the next save has room. Start all"
            in (ended[0].error["message"])
        )
        assert "was given up by rank 0: No room is left" in ended[1].error["message"]
        assert steps_of_ranks(root) == [15]
        ended = finish(root, 2, **options)
        assert [one.start["start"] for one in ended] == [15, 15]
        assert_whole(root)
        assert differing(root, tmp_path / "undisturbed") == []
        for rank in range(2):
            assert results(root, rank) == results(tmp_path / "undisturbed", rank)


def test_a_save_that_another_fault_ends_deletes_nothing(disk: Path) -> None:
    life(disk, until=25, killed=True)
    fails = FailingSystem(fail("fsync", errno.EIO, path=".tmp-"))
    run = Repository(LocalStore(disk / "run"), "run")
    with run.writer() as writer:
        checkpoints = writer.checkpoints
        checkpoints.store = LocalStore(disk / "run", system=fails)
        with pytest.raises(StoreUnavailable):
            full_disk.write(snapshot(step=9), meta(9), checkpoints, Keeping(keep_last=9))
    assert steps_of(disk) == [20, 10, 0]


class Quota(Intercepted):
    """Says that a quota is used up where a disk is full."""

    def _call(self, name: str, path: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise os_error(errno.EDQUOT) from error


class Limited(FaultyStore):
    """Takes so many bytes, as a bucket with a quota does."""

    def __init__(self, inner: ByteStore, *, most: int) -> None:
        super().__init__(inner)
        self._most = most

    def put(self, key: str, data: Content) -> None:
        content = b"".join(pieces(data))
        there = sum(self.inner.size(other) for other in self.inner.list() if other != key)
        if there + len(content) > self._most:
            raise StoreFull(f"The quota leaves no room for {key}.", key=key)
        super().put(key, content)


def hold(disk: Path, *, steps: set[int]) -> None:
    """Hold on to checkpoints, as somebody does who reads them."""
    run = repository(disk)
    wanted = [commit for commit in run.commits() if commit.step in steps]
    until = dict.fromkeys((commit.sequence for commit in wanted), 1e11)
    pins.hold(run.store, "reader", until, job="run", reason="read by the test", now=0.0)


def grown(disk: Path, *, numbers: int) -> str:
    """Go on with a part that has so many numbers more, save one step later, and end like a killed process.

    Returns why the save failed; an empty string if it did not.
    """

    def body() -> None:
        training = Training(width=WIDTH)
        engine = engine_of(training, disk)
        step = engine.resume().step
        training.net.weights = np.concatenate(
            [training.net.weights.ravel(), np.random.default_rng(1).random(numbers)]
        )
        error = ""
        try:
            engine.save(step + 1, reason="asked for", wait=True)
        except SaveFailed as failed:
            error = str(failed)
        disk.parent.joinpath("error").write_text(error)
        die()

    assert in_child(body) == -signal.SIGKILL
    return disk.parent.joinpath("error").read_text()

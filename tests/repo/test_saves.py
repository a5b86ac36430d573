"""The records of saves: they outlive checkpoints, stay few, and cost no save anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from unbroken.errors import Fenced, StoreUnavailable
from unbroken.format import layout, saves
from unbroken.format.records import LowWater
from unbroken.format.saves import SaveRecord
from unbroken.repo import copying
from unbroken.repo.mirror import Mirror, bring_back
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.saves import MOST_OBJECTS, SaveRecordWarning
from unbroken.repo.seal import seal, seal_line
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind
from unbroken.types import Epoch, Sequence, Step

from . import states
from .test_request_counts import SAVES, Crowd


def save(writer: RunWriter, step: int, *, keep_last: int = 2) -> str:
    """Save a step as a training does; return what could not be put on record."""
    checkpoints = writer.checkpoints
    writer.write(states.snapshot(bytes([step % 256]) * 3000, step=step), states.meta(step=step))
    plan = plan_retention(checkpoints.commits(), keep_last=keep_last)
    problem = checkpoints.record(plan, durable=step / 10)
    writer.retain(plan)
    return problem


class BlockedAt(FaultyStore):
    """Cannot read one object while it is `blocked`."""

    def __init__(self, inner: ByteStore, blocked: str) -> None:
        super().__init__(inner)
        self.blocked = blocked

    def get(self, key: str) -> bytes:
        if key == self.blocked:
            raise StoreUnavailable(f"{key} cannot be read now.", key=key)
        return super().get(key)


class Meanwhile(MemoryStore):
    """Lets something happen, once, before the first record of a save is read."""

    before_reading: Callable[[], None] | None = None

    def get(self, key: str) -> bytes:
        if key.startswith(saves.SAVES) and self.before_reading is not None:
            happens, self.before_reading = self.before_reading, None
            happens()
        return super().get(key)


def steps(records: Iterable[SaveRecord]) -> list[int]:
    return [record.step for record in records]


def keys(store: ByteStore) -> list[str]:
    return list(store.list(saves.SAVES))


@pytest.fixture(params=["disk", "elsewhere"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ByteStore:
    """A store that can append, and one that cannot."""
    if request.param == "elsewhere":
        return MemoryStore()
    return Repository.open(tmp_path, "run", create=True).store


def test_the_records_of_deleted_checkpoints_stay(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in range(1, 8):
            assert save(writer, step) == ""
    assert [commit.step for commit in repository.commits()] == [7, 6]
    found = repository.saves()
    assert steps(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [record.sequence for record in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.durable for record in found[:5]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert found[0].reason == "schedule"
    assert found[0].inexact == 1
    assert found[0].written is not None


def test_what_no_line_says_is_said_by_the_checkpoint(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            save(writer, step)
    for key in keys(store):
        store.delete(key)
    found = repository.saves()
    assert steps(found) == [2, 3]
    assert [(record.durable, record.reason) for record in found] == [(None, "schedule")] * 2


def test_a_damaged_line_costs_no_other(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "run", create=True)
    with repository.writer() as writer:
        for step in range(1, 6):
            save(writer, step)
    path = tmp_path / "run" / keys(repository.store)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"step":2', b'"step":7')
    path.write_bytes(b"".join(lines) + b'{"half a li')
    assert steps(repository.saves()) == [1, 3, 4, 5]
    with repository.writer() as writer:
        save(writer, 6)
    assert steps(repository.saves()) == [1, 3, 4, 5, 6]


def test_where_nothing_can_be_appended_one_request_does_for_as_many_saves_as_are_kept() -> None:
    store = FaultyStore(MemoryStore())
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in range(40):
            save(writer, step, keep_last=10)
    asked = [one for one in store.operations if one.key.startswith(saves.SAVES)]
    assert [one.name for one in asked] == ["put"] * 3
    assert steps(repository.saves()) == list(range(40))


def test_a_line_that_a_killed_writer_had_not_stored_is_stored_before_its_checkpoint_goes() -> None:
    store = MemoryStore()
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            save(writer, step, keep_last=5)
    assert keys(store) == []
    with repository.writer() as writer:
        for step in (4, 5):
            save(writer, step, keep_last=1)
    assert steps(repository.saves()) == [1, 2, 3, 4, 5]


def test_the_end_of_a_training_is_stored_at_once() -> None:
    store = MemoryStore()
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        checkpoints = writer.checkpoints
        writer.write(states.snapshot(), states.meta(1, position="end"))
        assert checkpoints.record(plan_retention(checkpoints.commits(), keep_last=5), durable=0.5) == ""
    (found,) = repository.saves()
    assert (found.position, found.durable) == ("end", 0.5)


def test_pruning_leaves_the_records(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            save(writer, step, keep_last=5)
        writer.prune(plan_retention(writer.checkpoints.commits(), keep_last=1))
    assert [commit.step for commit in repository.commits()] == [3]
    assert steps(repository.saves()) == [1, 2, 3]


def test_many_starts_leave_few_objects(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    starts = 3 * MOST_OBJECTS
    for step in range(starts):
        with repository.writer() as writer:
            save(writer, step, keep_last=1)
    assert len(keys(store)) <= MOST_OBJECTS + 1
    assert steps(repository.saves()) == list(range(starts))


def test_a_long_training_keeps_its_newest_records_and_an_even_choice_of_the_others(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        save(writer, 1)
    long = [
        SaveRecord(sequence=number, step=Step(number), epoch=Epoch(1)) for number in range(1, saves.MOST + 1)
    ]
    store.put(saves.saves(Epoch(1)), b"".join(map(seal_line, long)))
    first = Sequence(saves.MOST + 1)
    store.put(layout.LOW_WATER, seal(LowWater(sequence=first, epoch=Epoch(1))))
    with repository.writer() as writer:
        save(writer, 3000, keep_last=1)
        save(writer, 3001, keep_last=1)
    found = steps(repository.saves())
    assert found[-2:] == [3000, 3001]
    assert len(found) <= saves.MOST
    assert found[-saves.NEWEST :] == [*range(saves.MOST - saves.NEWEST + 3, saves.MOST + 1), 3000, 3001]
    older = [step for step in found if step < saves.MOST - saves.NEWEST]
    assert len(older) > saves.NEWEST // 8
    assert len({later - earlier for earlier, later in itertools.pairwise(older)}) == 1


def test_records_that_cannot_be_written_cost_no_checkpoint(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "run", create=True)
    (tmp_path / "run" / saves.SAVES).write_text("in the way")
    with repository.writer() as writer:
        for step in (1, 2, 3):
            assert "saves" in save(writer, step)
        with pytest.warns(SaveRecordWarning, match="every checkpoint is as it should be"):
            writer.prune(plan_retention(writer.checkpoints.commits(), keep_last=1))
    assert [commit.step for commit in repository.commits()] == [3]
    assert steps(repository.saves()) == [3]


@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.LOST_RESPONSE])
def test_what_failed_once_is_written_with_the_next(kind: Kind) -> None:
    inner = MemoryStore()
    Repository.over(inner, "run", create=True)
    counting = FaultyStore(inner)
    with Repository.over(counting, "run").writer() as writer:
        for step in (1, 2):
            save(writer, step, keep_last=1)
    at = next(n for n, one in enumerate(counting.operations) if one.key.startswith(saves.SAVES))
    base = MemoryStore()
    Repository.over(base, "run", create=True)
    store = FaultyStore(base, fault=Fault(kind, at))
    with Repository.over(store, "run").writer() as writer:
        save(writer, 1, keep_last=1)
        problem = save(writer, 2, keep_last=1)
        store.mend()
        save(writer, 3, keep_last=1)
    assert store.fired
    assert problem
    assert steps(Repository.over(base, "run").saves()) == [1, 2, 3]


def test_what_cannot_be_read_in_the_middle_is_read_again_from_the_beginning() -> None:
    inner = MemoryStore()
    repository = Repository.over(inner, "run", create=True)
    for step in range(3):
        with repository.writer() as writer:
            save(writer, step, keep_last=1)
            save(writer, step + 10, keep_last=1)
    before = keys(inner)
    assert len(before) == 3
    store = BlockedAt(inner, before[-1])
    with Repository.over(store, "run").writer() as writer:
        for step in range(20, 25):
            assert save(writer, step, keep_last=9) == f"{before[-1]} cannot be read now."
        store.blocked = ""
        assert save(writer, 25, keep_last=1) == ""
    # Objects that were read several times and counted each time would have been gathered by now.
    assert keys(inner)[:3] == before
    assert steps(repository.saves()) == [0, 10, 1, 11, 2, 12, *range(20, 26)]


def test_of_an_object_that_damage_made_huge_only_the_end_is_read(
    store: ByteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in (1, 2, 3):
            save(writer, step)
    (key,) = keys(store)
    lines = store.get(key)
    monkeypatch.setattr("unbroken.repo.saves.LONGEST", 2 * len(lines))
    huge = FaultyStore(store, counted=frozenset({"get", "get_range"}))
    store.put(key, b"\0" * 100_000 + b"\n" + lines)
    assert steps(Repository.over(huge, "run").saves()) == [1, 2, 3]
    store.put(key, lines + b"\0" * 100_000)
    assert steps(Repository.over(huge, "run").saves()) == [2, 3], "what the checkpoints say"
    assert [one.name for one in huge.operations if one.key == key] == ["get_range"] * 2
    with repository.writer() as writer:
        save(writer, 4)
    assert steps(repository.saves())[-2:] == [3, 4]


def test_a_reader_sees_every_record_while_the_next_writer_gathers_them() -> None:
    store = Meanwhile()
    repository = Repository.over(store, "run", create=True)
    for step in range(MOST_OBJECTS):
        with repository.writer() as writer:
            save(writer, 10 * step, keep_last=1)
            save(writer, 10 * step + 1, keep_last=1)
    listed = keys(store)
    assert len(listed) == MOST_OBJECTS

    def gather() -> None:
        with Repository.over(store, "run").writer() as writer:
            save(writer, 98, keep_last=1)
            save(writer, 99, keep_last=1)

    store.before_reading = gather
    found = steps(repository.saves())
    assert keys(store) != listed, "it was gathered between the listing and the reading"
    assert [step for step in found if step < 98] == [
        step for start in range(MOST_OBJECTS) for step in (10 * start, 10 * start + 1)
    ]


def test_a_writer_that_was_overtaken_hears_of_it_from_its_records() -> None:
    repository = Repository.over(MemoryStore(), "run", create=True)
    old = repository.writer()
    checkpoints = old.checkpoints
    old.write(states.snapshot(), states.meta(1, position="end"))
    plan = plan_retention(checkpoints.commits(), keep_last=5)
    with repository.writer(), pytest.raises(Fenced):
        checkpoints.record(plan, durable=0.1)


def test_what_an_overtaken_writer_put_on_record_does_not_count(store: ByteStore) -> None:
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        save(writer, 1)
    with repository.writer() as writer:
        save(writer, 2)
    store.put(saves.saves(Epoch(1)), seal_line(SaveRecord(sequence=9, step=Step(9), epoch=Epoch(1))))
    assert steps(repository.saves()) == [1, 2]


def test_a_copy_has_the_records_of_what_it_never_held(store: ByteStore, tmp_path: Path) -> None:
    source = Repository.over(store, "run", create=True)
    with source.writer() as writer:
        for step in range(1, 6):
            save(writer, step)
    target = Repository.open(tmp_path / "copy", "run", create=True)
    with target.writer() as writer:
        copied = list(copying.copy(source, source.commits()[::-1], target, writer))
        assert copying.copy_saves(source, target, writer) == 5
        assert copying.copy_saves(source, target, writer) == 0
        save(writer, 6, keep_last=1)
    found = target.saves()
    assert [(record.step, record.durable) for record in found] == [
        *((record.step, record.durable) for record in source.saves()),
        (6, 0.6),
    ]
    own = [one.target.sequence for one in copied]
    assert [record.sequence for record in found] == [0, 0, 0, *own, own[-1] + 1]
    with Repository.open(tmp_path / "again", "run", create=True).writer() as writer:
        copying.copy_saves(target, Repository.open(tmp_path / "again", "run"), writer)
    assert steps(Repository.open(tmp_path / "again", "run").saves()) == [1, 2, 3, 4, 5, 6]


def test_a_mirror_and_what_it_gives_back_have_the_records(tmp_path: Path) -> None:
    source = Repository.open(tmp_path / "runs", "run", create=True)
    with source.writer() as writer:
        for step in range(1, 6):
            save(writer, step)
    mirror = str(tmp_path / "mirror")
    with Mirror.open(mirror, Repository.open(tmp_path / "runs", "run")) as opened:
        assert len(list(opened.update(keep_last=1))) == 1
    assert steps(Repository.open(mirror, "run").saves()) == [1, 2, 3, 4, 5]
    returned = Repository.open(tmp_path / "anew", "run", create=True)
    with returned.writer() as writer:
        bring_back(mirror, returned, writer, Repository.open(mirror, "run").commits())
    assert steps(returned.saves()) == [1, 2, 3, 4, 5]


def test_of_several_ranks_the_first_alone_keeps_records() -> None:
    crowd = Crowd(2)
    found = Repository.over(crowd.base, "job").saves()
    assert steps(found) == list(range(1, SAVES + 1))

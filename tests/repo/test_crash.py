"""The process stops at every operation of every phase; afterwards the run must be as good as before.

For each phase and each k the process "dies" before, after or in the middle of its k-th change to the
store. Then a new process opens the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from unbroken.errors import StoreError, StoreFull, StoreUnavailable
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.snapshot import Snapshot
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped
from unbroken.types import Step

from .states import assert_sound, assert_swept, copied, meta, noise, same, snapshot, tokens

WEIGHTS, BUFFER = noise(5000, 1), noise(9000, 2)


def state(step: int) -> tuple[bytes, bytes]:
    return noise(5000, step), BUFFER


@dataclass
class Life:
    """What a process did before it died: which commits were acknowledged to it, which it gave up."""

    acknowledged: list[Commit]
    dropped: list[Commit]

    def save(self, writer: RunWriter, step: int) -> None:
        writer.mark_pending(Step(step), "schedule")
        self.acknowledged.append(writer.write(snapshot(*state(step), step=step), meta(step)))

    def retain(self, repository: Repository, writer: RunWriter, keep_last: int) -> None:
        plan = plan_retention(repository.commits(), keep_last=keep_last)
        self.dropped += plan.dropped
        writer.checkpoints.record(plan, durable=0.1)
        writer.retain(plan)


Phase = Callable[[Repository, Life], None]


def first_save(repository: Repository, life: Life) -> None:
    with repository.writer(token=tokens(1)) as writer:
        writer.write_birth(snapshot_without_blobs())
        life.save(writer, 100)


def second_save(repository: Repository, life: Life) -> None:
    with repository.writer(token=tokens(2)) as writer:
        life.save(writer, 200)


def save_and_retain(repository: Repository, life: Life) -> None:
    with repository.writer(token=tokens(3)) as writer:
        life.save(writer, 300)
        life.retain(repository, writer, 2)
        life.save(writer, 400)
        life.retain(repository, writer, 2)


def collect(repository: Repository, life: Life) -> None:
    with repository.writer(token=tokens(4)) as writer:
        life.retain(repository, writer, 1)


def snapshot_without_blobs() -> Snapshot:
    state = snapshot(b"", b"")
    for component in state.components.values():
        component.blobs.clear()
    return state


PHASES: dict[str, tuple[list[Phase], Phase]] = {
    "first save": ([], first_save),
    "second save": ([first_save], second_save),
    "saves with retention": ([first_save, second_save], save_and_retain),
    "collection": ([first_save, second_save, save_and_retain], collect),
}


def prepared(phases: list[Phase]) -> MemoryStore:
    store = MemoryStore()
    for phase in phases:
        phase(Repository.over(store, "job", create=True), Life([], []))
    return store


def faults(kind: Kind, name: str) -> Iterator[tuple[MemoryStore, FaultyStore]]:
    """Yield for each k a store and, around it, the one that fails at its k-th change."""
    before, phase = PHASES[name]
    base = prepared(before)
    counting = FaultyStore(copied(base))
    phase(Repository.over(counting, "job", create=True), Life([], []))
    assert len(counting.operations) > 5
    for at in range(len(counting.operations)):
        store = copied(base)
        yield store, FaultyStore(store, fault=Fault(kind, at))


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("kind", [Kind.STOP_BEFORE, Kind.STOP_AFTER, Kind.TORN])
def test_a_process_that_stops_anywhere_loses_nothing(kind: Kind, name: str) -> None:
    _, phase = PHASES[name]
    for store, faulty in faults(kind, name):
        committed = (
            Repository.over(store, "job").commits() if store.list(layout.FORMAT) or store.list() else []
        )
        life = Life([], [])
        with pytest.raises(Stopped):
            phase(Repository.over(faulty, "job", create=True), life)
        assert faulty.fired
        where = faulty.operations[-1]

        repository = Repository.over(store, "job", create=True)
        seen = repository.commits()
        assert_sound(repository)
        for commit in [*committed, *life.acknowledged]:
            assert commit in seen or commit in life.dropped, f"{commit} was lost at {where}"
        recorded = {record.sequence for record in repository.saves()}
        assert {commit.sequence for commit in seen} <= recorded
        if kind is not Kind.TORN:  # a store that cuts an object off takes what is on record with it
            for commit in [*committed, *life.acknowledged]:
                assert commit.sequence in recorded, f"nothing tells of {commit} since {where}"
        last_dropped = max((commit.sequence for commit in life.dropped), default=0)
        assert not life.dropped or any(commit.sequence > last_dropped for commit in seen)
        if seen:
            newest = seen[0]
            assert same(repository.load(newest), snapshot(*state(newest.step), step=newest.step))

        ever = {commit.sequence for commit in [*committed, *life.acknowledged, *seen]}
        with repository.writer(token=tokens(9)) as writer:
            assert repository.commits() == seen, "taking over changes nothing that counts"
            torn = {fault.key for fault in repository.broken()}
            if not torn:
                assert_swept(repository)
            after = writer.write(snapshot(*state(500), step=500), meta(500))
            assert after.sequence not in ever, "no number is used twice"
            writer.retain(plan_retention(repository.commits(), keep_last=1))
        assert repository.commits() == [after]
        assert [f for f in repository.broken() if layout.commit_sequence(f.key)] == []
        assert_sound(repository)
        assert_swept(repository)


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.LOST_RESPONSE])
def test_a_store_that_fails_once_anywhere_loses_nothing(kind: Kind, name: str) -> None:
    _, phase = PHASES[name]
    failed = 0
    for store, faulty in faults(kind, name):
        committed = Repository.over(store, "job").commits() if store.list() else []
        life = Life([], [])
        try:
            phase(Repository.over(faulty, "job", create=True), life)
        except StoreError:
            failed += 1
        assert faulty.fired
        repository = Repository.over(store, "job", create=True)
        seen = repository.commits()
        assert_sound(repository)
        for commit in [*committed, *life.acknowledged]:
            assert commit in seen or commit in life.dropped
        with repository.writer(token=tokens(9)):
            assert repository.commits() == seen
            assert_swept(repository)
    assert failed, "some failures were shown to the caller"


@pytest.mark.parametrize("name", ["first save", "second save", "saves with retention"])
def test_a_full_disk_keeps_what_was_and_gives_back_what_it_took(name: str) -> None:
    for store, faulty in faults(Kind.FULL, name):
        life = Life([], [])
        repository = None
        before: set[str] = set()
        with contextlib.suppress(StoreFull):
            repository = Repository.over(faulty, "job", create=True)
            before = set(store.list())
            PHASES[name][1](repository, life)
        for commit in life.acknowledged:
            assert commit in Repository.over(store, "job").commits() or commit in life.dropped
        if repository is None:
            continue
        survivor = Repository.over(store, "job")
        assert_sound(survivor)
        left = set(store.list()) - before
        directories = {commit.directory for commit in survivor.commits()}
        assert {key.rpartition("/")[0] for key in left if key.startswith("steps/")} <= directories
        if not survivor.commits():
            assert not any(key.startswith("packs/") for key in left)


def test_the_order_of_a_save_and_of_a_deletion() -> None:
    store = FaultyStore(MemoryStore())
    repository = Repository.over(store, "job", create=True)
    with repository.writer(token=tokens(1)) as writer:
        writer.mark_pending(Step(1), "schedule")
        del store.operations[:]
        first = writer.write(snapshot(), meta(1))
        kinds = [_kind(operation.key) for operation in store.operations]
        assert kinds == [
            "pack", "idx", "document", "document", "document", "meta", "manifest", "commit", "latest", "pending",
        ]  # fmt: skip
        writer.write(snapshot(b"new", step=2), meta(2))
        del store.operations[:]
        writer.retain(plan_retention(repository.commits(), keep_last=1))
        assert {operation.name for operation in store.operations[1:]} == {"delete"}
        assert [operation.key for operation in store.operations[:2]] == [
            layout.LOW_WATER,
            layout.commit(first.sequence),
        ]
        kinds = [_kind(operation.key) for operation in store.operations[2:]]
        assert kinds == ["manifest", "meta", "document", "document", "document", "idx", "pack"]


def _kind(key: str) -> str:
    if key.startswith(layout.COMMITS):
        return "commit"
    name, _, ending = key.rpartition("/")[2].rpartition(".")
    if ending in ("pack", "idx"):
        return ending
    return name if name in ("meta", "manifest", "latest", "pending") else "document"


def test_a_writer_goes_on_after_a_save_that_failed() -> None:
    before, _ = PHASES["second save"]
    base = prepared(before)
    counting = FaultyStore(copied(base))
    second_save(Repository.over(counting, "job"), Life([], []))
    for kind in (Kind.UNAVAILABLE, Kind.LOST_RESPONSE):
        for at in range(len(counting.operations)):
            faulty = FaultyStore(copied(base), fault=Fault(kind, at))
            repository = Repository.over(faulty, "job")
            with contextlib.suppress(StoreError), repository.writer(token=tokens(2)) as writer:
                with contextlib.suppress(StoreError):
                    writer.write(snapshot(*state(200), step=200), meta(200))
                # the same content: nothing of what the failed save has removed may be counted on
                after = writer.write(snapshot(*state(200), step=200), meta(200))
                writer.sweep()
                assert repository.commits()[0] == after
                assert_sound(repository)
                assert_swept(repository)


def test_a_writer_goes_on_after_a_collection_that_failed() -> None:
    def work(store: FaultyStore) -> None:
        repository = Repository.over(store, "job", create=True)
        with repository.writer(token=tokens(1)) as writer:
            for step in (100, 200):
                writer.write(snapshot(noise(500, step), step=step), meta(step))
            try:
                writer.retain(plan_retention(repository.commits(), keep_last=1))
            except StoreError:
                # the contents of the commit whose deletion was cut off
                writer.write(snapshot(noise(500, 100), step=300), meta(300))
                assert_sound(repository)

    counting = FaultyStore(MemoryStore())
    work(counting)
    for kind in (Kind.UNAVAILABLE, Kind.LOST_RESPONSE):
        for at in range(len(counting.operations)):
            with contextlib.suppress(StoreError):
                work(FaultyStore(MemoryStore(), fault=Fault(kind, at)))


def test_a_deletion_that_is_carried_out_late_takes_nothing_that_was_saved_since() -> None:
    store = MemoryStore()
    late: list[str] = []

    class Late(FaultyStore):
        def delete(self, key: str) -> None:
            if key.endswith(".idx"):
                late.append(key)
                raise StoreUnavailable("no answer", key=key)
            super().delete(key)

    repository = Repository.over(Late(store), "job", create=True)
    with repository.writer(token=tokens(1)) as writer:
        for step in (100, 200):
            writer.write(snapshot(noise(500, step), step=step), meta(step))
        with pytest.raises(StoreUnavailable):
            writer.retain(plan_retention(repository.commits(), keep_last=1))
        writer.write(snapshot(noise(500, 100), step=300), meta(300))
    for key in late:
        store.delete(key)
    assert_sound(Repository.over(store, "job"))

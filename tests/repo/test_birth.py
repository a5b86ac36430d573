from __future__ import annotations

import msgspec
import pytest

from unbroken.errors import CorruptObject, Fenced, InternalError
from unbroken.format import layout
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.memory import MemoryStore
from unbroken.types import Digest

from .states import array, meta, process, same, snapshot


@pytest.fixture
def repository() -> Repository:
    return Repository.over(MemoryStore(), "job", create=True)


def skeleton(rate: float) -> Snapshot:
    return Snapshot(components={"model": Component("model", roots={"model": rate, "λ": "x"})})


def born(step: int, name: str) -> Meta:
    return msgspec.structs.replace(meta(step), birth=name)


def save(writer: RunWriter, step: int, name: str) -> Commit:
    return writer.write(snapshot(step=step), born(step, name))


def names(repository: Repository) -> set[Digest | None]:
    return {layout.birth_name(key) for key in repository.store.list(layout.BIRTHS)}


def test_each_commit_has_the_birth_that_its_settings_go_with(repository: Repository) -> None:
    with repository.writer() as writer:
        before = save(writer, 1, writer.write_birth(skeleton(3e-4), segment=0))
        after = save(writer, 2, writer.write_birth(skeleton(1e-4), segment=0))
        without = save(writer, 3, "")
    for commit, rate in ((before, 3e-4), (after, 1e-4)):
        found = repository.birth(commit)
        assert found is not None
        assert same(found, skeleton(rate))
        assert repository.meta(commit).birth == commit.birth
    assert repository.birth(without) is None


def test_equal_births_are_one_object(repository: Repository) -> None:
    with repository.writer() as writer:
        assert writer.write_birth(skeleton(1.0)) == writer.write_birth(skeleton(1.0))
    assert len(names(repository)) == 1


def test_a_birth_has_no_array_contents(repository: Repository) -> None:
    full = skeleton(1.0)
    full.components["model"].blobs.append(array(b"content"))
    with repository.writer() as writer, pytest.raises(InternalError, match="array contents"):
        writer.write_birth(full)


def test_births_go_with_the_last_commit_that_names_them(repository: Repository) -> None:
    with repository.writer() as writer:
        first = writer.write_birth(skeleton(1.0))
        second = writer.write_birth(skeleton(2.0))
        third = writer.write_birth(skeleton(3.0))  # written and not named yet
        save(writer, 1, first)
        save(writer, 2, second)
        writer.retain(plan_retention(repository.commits(), keep_last=1))
        assert names(repository) == {first, second, third}
    with repository.writer() as writer:
        # What the last process has not come to use is nobody's any more.
        assert names(repository) == {second}
        save(writer, 3, "")
        writer.retain(plan_retention(repository.commits(), keep_last=1))
        assert names(repository) == set()


def test_a_fenced_writer_writes_no_birth(repository: Repository) -> None:
    old = repository.writer(owner=process(1))
    with repository.writer(owner=process(2)), pytest.raises(Fenced):
        old.write_birth(skeleton(1.0))
    assert names(repository) == set()


def test_damage_to_a_birth_is_an_error_and_found_by_verify(repository: Repository) -> None:
    with repository.writer() as writer:
        commit = save(writer, 1, writer.write_birth(skeleton(1.0)))
    key = layout.birth(Digest(commit.birth))
    data = repository.store.get(key)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        repository.store.put(key, bytes(flipped))
        with pytest.raises(CorruptObject):
            repository.birth(commit)
    assert [fault.key for fault in repository.verify(commit)] == [key]
    repository.store.delete(key)
    with pytest.raises(CorruptObject, match="missing"):
        repository.birth(commit)
    assert [fault.key for fault in repository.verify(commit)] == [key]

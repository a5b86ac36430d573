"""Reading of a run that saves, deletes and compacts between any two reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from unbroken.errors import CorruptObject
from unbroken.format import layout
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.log import is_gone
from unbroken.repo.pruning import plan_prune
from unbroken.repo.repository import Repository
from unbroken.repo.settled import settled
from unbroken.repo.usage import measure
from unbroken.store.base import ByteStore

from .states import meta, process, same, snapshot, tokens
from .training import Trained, at_read, compact, save_and_keep_one, source_run, trained


def disturbed(train: Callable[[ByteStore], None], do: Callable[[Repository], object]) -> Iterator[Repository]:
    """Yield a run for every read that `do` makes of it: the training goes on right before that read."""
    calm = trained(train)
    do(calm)
    assert isinstance(calm.store, Trained)
    for at in range(calm.store.reads):
        yield trained(train, at_read(at))


def newest_is_intact(repository: Repository) -> None:
    assert repository.verify(repository.commits()[0]) == []


def test_a_compaction_is_no_damage() -> None:
    _, states = source_run(ended=False)
    for repository in disturbed(compact, newest_is_intact):
        newest = repository.commits()[0]
        assert repository.verify(newest) == []
    for repository in disturbed(compact, lambda run: run.load(run.commits()[0])):
        assert same(repository.load(repository.commits()[0]), states[2])


@pytest.mark.parametrize("train", [save_and_keep_one, compact])
def test_only_what_counts_is_measured(train: Callable[[ByteStore], None]) -> None:
    passed_over = 0
    for repository in disturbed(train, lambda run: measure(run.store)):
        cost = measure(repository.store)
        left = {commit.sequence for commit in repository.commits()}
        assert [found.problem for found in cost.checkpoints if found.problem] == []
        assert not left & {commit.sequence for commit in cost.passed_over}
        assert cost.on_disk == cost.live + cost.dead
        assert min(cost.live, cost.dead) >= 0
        passed_over += len(cost.passed_over)
    assert passed_over > 0


@pytest.mark.parametrize("train", [save_and_keep_one, compact])
def test_a_plan_spares_nothing_for_what_was_deleted_meanwhile(train: Callable[[ByteStore], None]) -> None:
    for repository in disturbed(train, lambda run: plan_prune(run.store)):
        assert plan_prune(repository.store).collection.needed is not None


def test_a_commit_that_counts_is_not_gone_whatever_its_metrics_are() -> None:
    repository = trained(compact)
    with repository.writer(owner=process(2), token=tokens(9)) as writer:
        commit = writer.write(snapshot(step=9), meta(9, metrics={"loss": float("nan")}))
    assert not repository.gone(commit)
    assert is_gone(
        repository.store, msgspec.structs.replace(commit, write_id=repository.commits()[1].write_id)
    )


def test_a_record_that_is_damaged_is_not_gone_and_one_that_is_deleted_is() -> None:
    repository = trained(compact)
    commit = repository.commits()[0]
    key = layout.commit(commit.sequence)
    repository.store.put(key, repository.store.get(key)[:-9])
    assert not repository.gone(commit)
    assert repository.verify(commit)
    repository.store.delete(key)
    assert repository.gone(commit)


def test_what_lacks_a_pack_for_good_is_damaged() -> None:
    repository = trained(compact)
    commit = repository.commits()[0]
    for key in repository.store.list(layout.PACKS):
        repository.store.delete(key)
    assert repository.verify(commit)
    with pytest.raises(CorruptObject):
        repository.load(commit)


def test_what_is_missed_is_looked_for_again_only_where_packs_have_changed() -> None:
    repository = trained(compact)
    index = BlobIndex(repository.store)
    index.refresh()
    calls = 0

    def read() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            compact(repository.store)
        raise CorruptObject("It is missing.")

    with pytest.raises(CorruptObject):
        settled(index, read)
    assert calls == 2

"""What checkpoints and components cost, held against what goes when they go."""

from __future__ import annotations

import pytest

from unbroken.format import layout
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.usage import RunCost, measure
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore

from .rings import Ring
from .states import meta, noise, process, snapshot, tokens

HINTS = {layout.LATEST, layout.LEASE, layout.LOW_WATER}
PACK = 300
"""What a pack takes beside its blobs: header, tail, heads of the index in it and beside it."""


def on_disk(store: ByteStore) -> int:
    return sum(store.size(key) for key in store.list())


def trained(saves: int = 4) -> tuple[MemoryStore, Repository]:
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    ring = Ring(40)
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        for step in range(saves):
            ring.train(10)
            state = ring.changed()
            writer.write(state, meta(step))
            ring.saved(state)
        writer.prune()
    return store, repository


@pytest.mark.parametrize("oldest", [1, 2, 3])
def test_what_a_checkpoint_costs_alone_is_what_goes_with_it(oldest: int) -> None:
    """One after the other is dropped, the oldest first; each time the store shrinks by what was foretold."""
    store, repository = trained()
    for life in range(oldest):
        cost = measure(store)
        foretold = cost.checkpoints[-1]
        assert foretold.commit == repository.commits()[-1]
        before = sum(store.size(key) for key in store.list() if key not in HINTS and "epochs" not in key)
        packs = len(store.list(layout.PACKS))
        with repository.writer(owner=process(life + 2), token=tokens(life + 2)) as writer:
            writer.prune(plan_retention(repository.commits(), keep_last=len(cost.checkpoints) - 1))
        after = sum(store.size(key) for key in store.list() if key not in HINTS and "epochs" not in key)
        assert foretold.cost.alone > 20_000
        assert before - after == pytest.approx(foretold.cost.alone, abs=PACK * packs)


def test_the_totals_are_what_lies_there() -> None:
    store, repository = trained()
    cost = measure(store)
    assert cost.on_disk == on_disk(store) == cost.live + cost.dead
    assert cost.dead == 0
    with repository.writer(owner=process(2), token=tokens(2)) as writer:
        writer.retain(plan_retention(repository.commits(), keep_last=2))
        dead = measure(store).dead
        before = on_disk(store)
        assert dead > 1000, "no pack was more than half dead"
        writer.prune()
        assert before - on_disk(store) == pytest.approx(dead, abs=2 * PACK)
        assert measure(store).dead < 0.05 * on_disk(store)


def shown(cost: RunCost) -> dict[str, tuple[int, int]]:
    return {name: (part.alone, part.shared) for name, part in cost.components.items()}


def test_what_two_components_hold_is_shared_and_goes_with_neither() -> None:
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    same = noise(10_000, 1)
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        writer.write(snapshot(same, same, step=1), meta(1))
    found = shown(measure(store))
    assert found["policy_weights"][1] == found["replay_buffer"][1] == pytest.approx(10_000, abs=PACK)
    assert found["policy_weights"][0] < 1000, "its document"
    assert found["counters"][1] == 0


def test_checkpoints_that_hold_the_same_share_it() -> None:
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        for step in (1, 2):
            writer.write(snapshot(noise(5000, step), noise(10_000, 9), step=step), meta(step))
    for found in measure(store).checkpoints:
        assert found.cost.shared == pytest.approx(10_000, abs=PACK)
        commit = found.commit
        own = [*store.list(commit.directory), layout.commit(commit.sequence)]
        expected = 5000 + sum(map(store.size, own))
        assert found.cost.alone == pytest.approx(expected, abs=2 * PACK)
        assert found.cost.raw == 15_004 + sum(map(store.size, own)), "arrays and documents"
        assert found.cost.ratio == pytest.approx(found.cost.raw / (found.cost.alone + found.cost.shared))
        assert found.components["replay_buffer"].shared == found.cost.shared


def test_a_checkpoint_that_cannot_be_read_is_named_and_hides_no_other() -> None:
    store, repository = trained()
    damaged = repository.commits()[1]
    key = f"{damaged.directory}/{layout.MANIFEST}"
    store.put(key, store.get(key)[:-9])
    cost = measure(store)
    assert [bool(found.problem) for found in cost.checkpoints] == [False, True, False, False]
    assert cost.dead == 0, "it may need anything"

"""Listings that lag behind: what was written since is found by its name."""

from __future__ import annotations

from unbroken.repo.fencing import Claim, claim, read_epochs, start
from unbroken.repo.log import read_log
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.store.base import Names
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch, Sequence

from .states import meta, snapshot


class Lagging(MemoryStore):
    """Lists what it held when it was last told to catch up."""

    def __init__(self) -> None:
        super().__init__()
        self._listed: Names = []

    def catch_up(self) -> None:
        self._listed = super().list()

    def forget(self) -> None:
        """List no commit at all."""
        self._listed = [key for key in super().list() if not key.startswith("commits/")]

    def list(self, prefix: str = "") -> Names:
        return [key for key in self._listed if key.startswith(f"{prefix}/")]


def taken(store: MemoryStore, token: str) -> Claim:
    return claim(store, token=lambda: token * 12, owner=current(), job="job", time=0.0)


def test_epochs_that_are_not_listed_yet_are_known_with_their_starts() -> None:
    store = Lagging()
    start(store, taken(store, "1"), last=Sequence(0))
    store.catch_up()
    start(store, taken(store, "2"), last=Sequence(4))
    start(store, taken(store, "3"), last=Sequence(7))
    assert store.list("epochs") == ["epochs/0000000001.json", "epochs/0000000001.start.json"]
    found = read_epochs(store)
    assert found.highest == 3
    assert found.starts == {Epoch(1): 1, Epoch(2): 5, Epoch(3): 8}


def test_a_claim_that_is_listed_before_its_start_is_known_with_it() -> None:
    store = Lagging()
    first = taken(store, "1")
    store.catch_up()
    start(store, first, last=Sequence(3))
    assert read_epochs(store).starts == {Epoch(1): 4}


def test_commits_that_are_not_listed_yet_count_and_keep_their_numbers() -> None:
    store = Lagging()
    with Repository.over(store, "job", create=True).writer() as writer:
        commits = [writer.write(snapshot(step=step), meta(step)) for step in (1, 2)]
    assert read_log(store).commits == tuple(reversed(commits))
    assert read_log(store).last == 2
    with Repository.over(store, "job").writer() as writer:
        assert writer.write(snapshot(step=3), meta(3)).sequence == 3
    assert [commit.step for commit in read_log(store).commits] == [3, 2, 1]


def test_commits_that_a_retention_has_kept_count_although_no_listing_shows_them() -> None:
    """Else the next start would begin before them, and declare void what was acknowledged."""
    store = Lagging()
    with Repository.over(store, "job", create=True).writer() as writer:
        writer.write(snapshot(step=1), meta(1))
        store.catch_up()
        kept = [writer.write(snapshot(step=step), meta(step)) for step in (2, 3, 4)][1:]
        store.catch_up()
        writer.retain(plan_retention(read_log(store).commits, keep_last=2))
        store.forget()
        assert read_log(store).commits == tuple(reversed(kept))
    with Repository.over(store, "job").writer() as writer:
        assert writer.write(snapshot(step=5), meta(5)).sequence > kept[-1].sequence
    assert read_log(store).commits[1:] == tuple(reversed(kept))

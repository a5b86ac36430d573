"""What is asked of a run after a fault, by the real code on a healthy store.

1. Whatever was promised is there: each commit that was acknowledged and not given up, and each line of the history.
2. Whatever is there is whole: each commit that counts loads byte for byte what its step was, promised or not.
3. The next process takes the run over, nothing that counts changes, and it saves and retains.
4. Nothing is left over: no object that no commit needs, no temporary file, no number used twice.
5. All of it within a bound of operations, so that "it hangs" is a count and not a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from torture.life import FAR, JOB, Life, Promises, contents_at, held_by
from torture.returning_faults import Bounded
from unbroken.errors import StoreError, UnbrokenError
from unbroken.format import layout, pack
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.store.publish import TEMPORARY

MOST_OPERATIONS = 6000
"""Calls of the system, reads included, that one recovery may take. The longest that was seen takes less than a half."""


class Lost(Exception):
    """A commit that was acknowledged is gone."""


class Wrong(Exception):
    """Something that is not true is taken for true, or something is left over."""


def recover(root: Path, promises: Promises, *, clock: Callable[[], float] = time.time) -> int:
    """Recover the run in a directory; return how many calls of the system it took.

    Raises:
        Lost, Wrong, TooMany: it did not come out as it must.
    """
    system = Bounded(MOST_OPERATIONS)
    store = LocalStore(root, system=system, clock=clock)
    examine(store, promises)
    _nothing_temporary(root)
    return system.calls


def examine(store: ByteStore, promises: Promises) -> None:
    """Ask all of it of a run in a store that is healthy now."""
    try:
        _examine(store, promises)
    except UnbrokenError as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error


def _examine(store: ByteStore, promises: Promises) -> None:
    _begun(store, promises)
    repository = Repository.over(store, JOB, create=True)
    seen = look(repository, promises)
    if len(repository.history()) < promises.lines:
        raise Wrong(
            f"{promises.lines} lines of the history were written, {len(repository.history())} are there"
        )
    go_on(store, repository, seen, promises)


def look(repository: Repository, promises: Promises) -> list[Commit]:
    """Return the commits that count, all of which are what they must be."""
    seen = repository.commits()
    there = {(commit.sequence, commit.write_id) for commit in seen}
    for commit in promises.kept:
        if (commit.sequence, commit.write_id) not in there:
            raise Lost(f"commit {commit.sequence} of step {commit.step} was acknowledged, and is not there")
    if promises.acknowledged and not seen:
        raise Lost("no commit is left")
    for commit in seen:
        if held_by(repository.load(commit)) != contents_at(commit.step):
            raise Wrong(f"commit {commit.sequence} does not hold the state of step {commit.step}")
        if commit.birth and repository.birth(commit) is None:
            raise Wrong(f"commit {commit.sequence} names a birth that is not there")
    return seen


def go_on(store: ByteStore, repository: Repository, seen: list[Commit], promises: Promises) -> None:
    """Take the run over, save, retain, and demand that nothing is left over."""
    life = Life(store, Promises(), 9)
    try:
        if repository.commits() != seen:
            raise Wrong("taking the run over has changed what counts")
        life.begin()
        life.save(FAR)
        used = {commit.sequence for commit in [*promises.acknowledged, *seen]} | set(promises.given_up)
        again = [commit.sequence for commit in life.promises.acknowledged if commit.sequence in used]
        if again:
            raise Wrong(f"the number {again[0]} is used twice")
        life.retain(1)
        for fault in [
            fault for commit in look(repository, life.promises) for fault in repository.verify(commit)
        ]:
            raise Wrong(f"{fault.key} is damaged: {fault.problem}")
        if repository.commits() != life.promises.kept:
            raise Wrong("another commit counts than the one that is kept")
        leftovers(store, repository)
    finally:
        life.writer.close()
    if store.list(layout.LEASE) or any(key in (layout.LEASE, layout.PENDING) for key in store.list()):
        raise Wrong("a lease or a record of a save is left after the end")


def leftovers(store: ByteStore, repository: Repository) -> None:
    """Demand that nothing lies in the run that no commit needs."""
    commits = repository.commits()
    directories = {commit.directory for commit in commits}
    for key in store.list(layout.STEPS):
        if key.rpartition("/")[0] not in directories:
            raise Wrong(f"{key} is left over")
    needed = {digest for commit in commits for digest in _needed(repository, commit)}
    packs = store.list(layout.PACKS)
    for key in packs:
        name = layout.pack_name(key)
        if name is None or layout.pack(name) not in packs:
            raise Wrong(f"{key} is left over")
        held = {entry.digest for entry in pack.decode_index(store.get(layout.index(name))).entries}
        if not needed & held:
            raise Wrong(f"{key} holds nothing that is needed")
    extra = set(store.list(layout.COMMITS)) - {layout.commit(commit.sequence) for commit in commits}
    if extra:
        raise Wrong(f"{min(extra)} is left over")


def _needed(repository: Repository, commit: Commit) -> set[str]:
    return set(repository.manifest(commit).blobs)


def _begun(store: ByteStore, promises: Promises) -> None:
    """A run that was cut off at its birth has nothing that a person could open, and promised nothing."""
    if not promises.acknowledged:
        return
    try:
        store.get(layout.FORMAT)
    except StoreError as error:
        raise Lost(f"the run cannot be opened: {error}") from error


def _nothing_temporary(root: Path) -> None:
    left = [path for path in root.rglob("*") if path.name.startswith(TEMPORARY)]
    if left:
        raise Wrong(f"{left[0].relative_to(root)} is left over")

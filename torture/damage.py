"""Damage that a disk or a person does to a run at rest: flipped bits, files cut off, emptied, swapped, gone.

A commit that does not need the damaged file must load as it was. One that needs it must say so, and never load as
something else. The next process goes on in either case.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import Tree
from torture.disks import laid_out, room, taken
from torture.life import FAR, JOB, Life, Promises, contents_at, held_by, temporary_tokens, whole
from torture.recovery import MOST_OPERATIONS, Lost, Wrong
from torture.returning_faults import Bounded
from unbroken.errors import CorruptObject, ObjectMissing, UnbrokenError
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore

BITS = 24
"""Bits that are flipped in each file, one at a time."""


def cases(*, seed: int = 0) -> Iterator[Case]:
    """Yield damage to each file of a run that has had two starts."""
    promises = Promises()
    with room() as folder:
        whole(LocalStore(folder / "run", token=temporary_tokens(1)), promises)
        tree = taken(folder)
        files = [path for path, data in tree.items() if data is not None]
        needed = {path: _needs(folder, tree, path, gone=False) for path in files}
        # An index that is there and damaged is read from its pack; a pack without one is a leftover of a save.
        missed = {path: _needs(folder, tree, path, gone=True) for path in files}
    for path in sorted(needed):
        for kind, detail, data in _damaged(tree, path, random.Random(f"{seed} {path}")):
            yield Case(
                f"damage: {kind}",
                f"{path}: {detail}",
                f"damage {path} {kind} {detail}",
                partial(_run, tree, promises, path, data, (missed if data is None else needed)[path]),
            )


def _damaged(tree: Tree, path: str, draw: random.Random) -> Iterator[tuple[str, str, bytes | None]]:
    data = tree[path]
    assert data is not None
    size = len(data)
    places = {0, size * 8 - 1, *(draw.randrange(size * 8) for _ in range(BITS))} if size else set[int]()
    for bit in sorted(places):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield "a bit flipped", f"bit {bit}", bytes(flipped)
    for cut in sorted({1, size // 2, size - 1} - {size}):
        if 0 < cut < size:
            yield "cut off", f"at {cut}", data[:cut]
            yield "zeros at the end", f"from {cut}", data[:cut].ljust(size, b"\0")
    if size:
        yield "empty", "", b""
    yield "longer", "by 17 bytes", data + b"\xff" * 17
    if path.endswith(".jsonl"):
        return  # nothing but its lines says what it held
    yield "gone", "", None
    ending = path.rpartition(".")[2]
    others = [
        other
        for other in sorted(tree)
        if other != path and other.endswith(ending) and tree[other] is not None
    ]
    for other in others[:3]:
        if tree[other] != data:
            yield "swapped", f"for {other}", tree[other]


def _needs(folder: Path, tree: Tree, path: str, *, gone: bool) -> frozenset[int]:
    """Return the commits that cannot do without a file, or without what it holds."""
    spoiled = folder / "spoiled"
    without = {name: data for name, data in tree.items() if name != path}
    laid_out(without if gone else {**tree, path: b""}, spoiled)
    repository = Repository(LocalStore(spoiled / "run"), JOB)
    healthy = Repository(LocalStore(folder / "run"), JOB).commits()
    there = {commit.sequence for commit in repository.commits()}
    return frozenset(
        commit.sequence for commit in healthy if commit.sequence not in there or repository.verify(commit)
    )


def _run(
    tree: Tree, promises: Promises, path: str, data: bytes | None, needed: frozenset[int], folder: Path
) -> int:
    damaged = dict(tree)
    if data is None:
        del damaged[path]
    else:
        damaged[path] = data
    laid_out(damaged, folder)
    system = Bounded(MOST_OPERATIONS)
    store = LocalStore(folder / "run", system=system)
    try:
        _examine(store, promises, needed, gone=path if data is None else "")
    except UnbrokenError as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    return system.calls


def _examine(store: ByteStore, promises: Promises, needed: frozenset[int], *, gone: str) -> None:
    repository = Repository.over(store, JOB, create=True)
    _look(repository, promises.kept, needed)
    # A record that somebody has deleted by hand says nothing of its number any more.
    used = {
        commit.sequence for commit in promises.acknowledged if f"run/{layout.commit(commit.sequence)}" != gone
    }
    life = Life(store, Promises(), 9, repository=repository)
    try:
        life.begin()
        life.save(FAR)
        life.save(FAR + 1)
        _look(repository, [*promises.kept, *life.promises.kept], needed)
        if any(commit.sequence in used for commit in life.promises.kept):
            raise Wrong("a number is used twice")
        life.retain(1)
        _look(repository, life.promises.kept, frozenset())
    finally:
        life.writer.close()


def _look(repository: Repository, kept: list[Commit], needed: frozenset[int]) -> None:
    """Demand that every commit is what it must be, or is named as damaged."""
    seen = {commit.sequence: commit for commit in repository.commits()}
    for commit in kept:
        if commit.sequence in needed:
            continue
        if commit.sequence not in seen:
            raise Lost(f"commit {commit.sequence} is gone with a file that it does not need")
        _load(repository, commit)
    for commit in seen.values():
        try:
            _load(repository, commit)
        except (CorruptObject, ObjectMissing):
            if commit.sequence not in needed:
                raise
            if not repository.verify(commit):
                raise Wrong(
                    f"commit {commit.sequence} does not load, and nothing is said to be wrong"
                ) from None


def _load(repository: Repository, commit: Commit) -> None:
    if held_by(repository.load(commit)) != contents_at(commit.step):
        raise Wrong(f"commit {commit.sequence} loads as something else than step {commit.step}")

"""What checkpoints and components cost on the disk: alone, which is what goes if they go, and shared.

Nothing is locked, changed or loaded: indexes, documents and chunk lists say it all. Bytes of blobs are as
they are stored, with what describes them in pack and index; those of checkpoints include their documents.

The run may be in training meanwhile: a checkpoint that it deletes before it is measured is passed over, and an
object that goes between its listing and its measure counts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.document import BlobRef
from unbroken.format.records import Commit
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists
from unbroken.repo.log import is_gone
from unbroken.repo.packsize import entry_bytes, pack_bytes
from unbroken.repo.pruning import PrunePlan, plan_prune
from unbroken.repo.reader import Reader
from unbroken.repo.settled import settled
from unbroken.store.base import ByteStore
from unbroken.types import Digest

Owner = TypeVar("Owner", int, str)


@dataclass(slots=True)
class Cost:
    """`alone`: bytes that nothing else needs; `shared`: bytes that something else needs, too.

    `raw` are the bytes of its arrays, uncompressed, and of its documents, as often as checkpoints hold them.
    """

    alone: int = 0
    shared: int = 0
    raw: int = 0

    @property
    def stored(self) -> int:
        return self.alone + self.shared

    @property
    def ratio(self) -> float:
        """How many bytes a stored byte stands for."""
        return self.raw / self.stored if self.stored else 0.0


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """One checkpoint. Of a component, `alone` is what no other component and no other checkpoint needs."""

    commit: Commit
    cost: Cost
    components: dict[str, Cost]
    problem: str = ""
    """Why nothing is known of it."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """One run. `on_disk` is `live` and `dead`; what is dead goes with a prune."""

    checkpoints: tuple[CheckpointCost, ...]
    components: dict[str, Cost]
    live: int
    dead: int
    on_disk: int
    passed_over: tuple[Commit, ...] = ()
    """Those that were deleted before they were measured."""


@dataclass(slots=True)
class _Part:
    """A component in a checkpoint: its blobs, and the bytes of its document."""

    checkpoint: int
    component: str
    blobs: set[Digest] = field(default_factory=set[Digest])
    document: int = 0
    raw: int = 0


def measure(store: ByteStore) -> RunCost:
    """Measure a run."""
    plan = plan_prune(store)
    there = sizes_of(store)
    commits = plan.inventory.log.commits
    parts: list[_Part] = []
    own: dict[int, int] = {}
    problems: dict[int, str] = {}
    gone: list[Commit] = []
    for number, commit in enumerate(commits):
        try:
            parts += settled(plan.index, partial(_measured, store, plan.index, plan.lists, number, commit))
            own[number] = sum(map(store.size, _objects_of(commit, commits)))
        except (CorruptObject, ObjectMissing, UnsupportedFormat) as error:
            if is_gone(store, commit):  # the training does not keep it any more
                gone.append(commit)
                parts = [part for part in parts if part.checkpoint != number]
            else:
                problems[number] = error.message
    sizes = _Sizes(plan.index)
    by_checkpoint = _costs(((part.checkpoint, part) for part in parts), sizes)
    by_component = _costs(((part.component, part) for part in parts), sizes)
    by_part = _costs(((id(part), part) for part in parts), sizes)
    by_number: dict[int, dict[str, Cost]] = {}
    for part in parts:
        by_number.setdefault(part.checkpoint, {})[part.component] = by_part[id(part)]
    found: list[CheckpointCost] = []
    for number, commit in enumerate(commits):
        if commit in gone:
            continue
        cost = by_checkpoint.get(number, Cost())
        cost.alone += own.get(number, 0)
        cost.raw += own.get(number, 0)
        found.append(CheckpointCost(commit, cost, by_number.get(number, {}), problems.get(number, "")))
    on_disk = sum(there.values())
    dead = _dead(there, plan)
    components = dict(sorted(by_component.items()))
    return RunCost(tuple(found), components, on_disk - dead, dead, on_disk, tuple(gone))


def sizes_of(store: ByteStore) -> dict[str, int]:
    """Return the size of every object; one that is deleted since it was listed is left out."""
    found: dict[str, int] = {}
    for key in store.list():
        with suppress(ObjectMissing, ObjectBlocked):
            found[key] = store.size(key)
    return found


class _Sizes(dict[Digest, int]):
    """What each blob takes on the disk; looked up once."""

    def __init__(self, index: BlobIndex) -> None:
        super().__init__()
        self._index = index

    def __missing__(self, digest: Digest) -> int:
        places = self._index.places(digest)
        self[digest] = entry_bytes(places[0].entry) if places else 0
        return self[digest]


def _measured(
    store: ByteStore, index: BlobIndex, lists: ChunkLists, number: int, commit: Commit
) -> list[_Part]:
    found: list[_Part] = []
    reader = Reader(store, index, commit)
    for entry in reader.manifest.documents.values():
        part = _Part(number, entry.component, document=entry.size)
        for ref in reader.document(entry.component).blobs:
            part.raw += ref.size
            part.blobs |= _blobs_of(ref, lists)
        found.append(part)
    return found


def _blobs_of(ref: BlobRef, lists: ChunkLists) -> set[Digest]:
    if ref.tree is None:
        return {Digest(digest) for digest in ref.chunks}
    chunks = lists.get(Digest(ref.tree), ref.count)
    return {node.name for node in chunks.nodes()}.union(chunks)


def _objects_of(commit: Commit, commits: Collection[Commit]) -> Iterator[str]:
    """Yield the keys of what goes with a checkpoint beside packs and documents, which its components count."""
    yield layout.commit(commit.sequence)
    yield f"{commit.directory}/{layout.MANIFEST}"
    yield f"{commit.directory}/{layout.META}"
    if commit.birth and sum(other.birth == commit.birth for other in commits) == 1:
        yield layout.birth(Digest(commit.birth))


def _costs(parts: Iterable[tuple[Owner, _Part]], sizes: _Sizes) -> dict[Owner, Cost]:
    """Return what each owner costs: a blob that two of them need is shared."""
    costs: dict[Owner, Cost] = {}
    needed: dict[Owner, set[Digest]] = {}
    for owner, part in parts:
        cost = costs.setdefault(owner, Cost())
        cost.alone += part.document
        cost.raw += part.raw + part.document
        needed.setdefault(owner, set()).update(part.blobs)
    owners: dict[Digest, int] = {}
    for blobs in needed.values():
        for digest in blobs:
            owners[digest] = owners.get(digest, 0) + 1
    for owner, blobs in needed.items():
        for digest in blobs:
            if owners[digest] == 1:
                costs[owner].alone += sizes[digest]
            else:
                costs[owner].shared += sizes[digest]
    return costs


def _dead(there: Mapping[str, int], plan: PrunePlan) -> int:
    """Return the bytes that a prune would free: garbage, and blobs in packs that nobody needs or that lie twice."""
    dead = 0
    in_packs = {name: found for name, found in plan.index.packs.items() if layout.pack(name) in there}
    packs = {layout.pack_name(key) for key in plan.collection.packs}
    for key in plan.collection.keys:
        name = layout.pack_name(key)
        if name is None or name not in plan.index.packs:
            dead += there.get(key, 0)
    for name, index in in_packs.items():
        if name in packs:
            dead += pack_bytes(index)
        elif plan.collection.needed is not None:
            dead += sum(
                entry_bytes(entry)
                for entry in index.entries
                if entry.digest not in plan.collection.needed
                or plan.index.places(entry.digest)[0].pack != name
            )
    return dead

"""What one process restores of a checkpoint that other numbers of processes may have written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from unbroken.engine.world import World
from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.manifest import Manifest
from unbroken.format.records import Commit
from unbroken.repo.fault import ObjectFault
from unbroken.repo.repository import Repository
from unbroken.state.parts import split_name, view
from unbroken.state.snapshot import Snapshot
from unbroken.types import Digest

ALONE = World(rank=0, size=1)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a checkpoint that is for one rank.

    `components` are the names under which the checkpoint holds it; `birth` the document that its settings go
    with, empty where there is none. `inexact` says what a changed number of ranks has cost; empty: nothing.
    """

    snapshot: Snapshot
    components: tuple[str, ...]
    birth: Digest | None
    inexact: str = ""


def commit_of(repository: Repository, step: int | None) -> Commit:
    """Return the newest commit, or the newest of a step.

    Raises:
        ConfigError: there is none.
    """
    commits = repository.commits()
    chosen = next((commit for commit in commits if step is None or commit.step == step), None)
    if chosen is None:
        steps = ", ".join(f"{n:,}" for n in sorted({commit.step for commit in commits})) or "none"
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step:,}"
        raise ConfigError(f"The run {repository.job!r} holds {wanted}.", hint=f"There are: {steps}.")
    return chosen


def load_share(repository: Repository, commit: Commit, world: World | None) -> Share:
    """Return what is for one rank of the world, or for a process that is alone.

    Raises:
        CorruptObject: a part of it is damaged or missing.
    """
    me = world or ALONE
    manifest = repository.manifest(commit)
    names = tuple(_wanted(manifest, me))
    lent = frozenset(name for name in names if split_name(name)[1] not in (None, me.rank))
    snapshot = view(repository.load(commit, names), me.rank, lent=lent)
    return Share(snapshot, names, _birth(manifest, commit, me), changed_size(len(manifest.ranks), me))


def find_damage(repository: Repository, commit: Commit, world: World, rank: int) -> list[ObjectFault]:
    """Return what is wrong with the part of a checkpoint that is for one rank of the world; nothing is kept.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        manifest = repository.manifest(commit)
    except CorruptObject:
        return repository.verify(commit, births=False)
    return repository.verify(commit, [*_wanted(manifest, replace(world, rank=rank))], births=False)


def _wanted(manifest: Manifest, me: World) -> Iterable[str]:
    is_new = 0 < len(manifest.ranks) <= me.rank
    for entry in manifest.documents.values():
        name, owner = split_name(entry.component)
        if owner == me.rank or (owner is None and _is_for(name, manifest, me)):
            yield entry.component
        elif is_new and owner == 0 and name in me.replicated:
            # Weights with something of each rank's own in them: one rank with new ones would train another model.
            yield entry.component


def _is_for(component: str, manifest: Manifest, me: World) -> bool:
    # What a single process has written belongs to rank 0, but for what all hold.
    return bool(manifest.ranks) or me.is_coordinator or component in me.replicated


def _birth(manifest: Manifest, commit: Commit, me: World) -> Digest | None:
    names = [part.birth for part in manifest.ranks] or [commit.birth]
    name = names[me.rank] if me.rank < len(names) else ""
    return Digest(name) if name else None


def picked(snapshot: Snapshot, components: Collection[str] | None) -> Snapshot:
    """Return some components of a rank's share, or all of it.

    Raises:
        ConfigError: it has none of a name that was asked for.
    """
    if components is None:
        return snapshot
    lacking = sorted(set(components) - snapshot.components.keys())
    if lacking:
        raise ConfigError(
            f"This rank has no component {lacking[0]!r}.",
            hint=f"It has: {', '.join(sorted(snapshot.components))}.",
        )
    return replace(snapshot, components={name: snapshot.components[name] for name in components})


def changed_size(saved: int, me: World) -> str:
    """Return what it costs that a checkpoint of `saved` ranks (0: of a process alone) goes on with others."""
    before = max(saved, 1)
    if before == me.size:
        return ""
    # The same words on every rank: it is rank 0 alone that says them.
    changed = f"the number of ranks was {before} and is {me.size}"
    if me.size > before:
        return f"{changed}: what {_ranks(before, me.size)} has of its own is new"
    return f"{changed}: what {_ranks(me.size, before)} had of its own is left out"


def _ranks(first: int, end: int) -> str:
    return f"rank {first}" if end == first + 1 else f"each of the ranks {first} to {end - 1}"

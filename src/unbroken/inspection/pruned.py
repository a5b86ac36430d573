"""What pruning a run would do, and has done: the plan told for a machine, and the one place that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unbroken.format.records import Commit
from unbroken.repo.collect import Spared
from unbroken.repo.fault import ObjectFault
from unbroken.repo.pruning import PrunePlan, retention_now
from unbroken.repo.repository import Repository
from unbroken.repo.usage import sizes_of
from unbroken.report.pruning import freed_by


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a machine reads. With `dry_run` nothing was done, and `freed` is what would be."""

    run: str
    dry_run: bool
    busy: str
    dropped: tuple[int, ...]
    """Steps of the checkpoints that go."""
    deleted: tuple[str, ...]
    rewritten: tuple[str, ...]
    spared: tuple[Spared, ...]
    freed: int
    damaged: tuple[ObjectFault, ...] = ()
    missing_room: int = 0


def planned(run: str, plan: PrunePlan, size_of: Callable[[str], int]) -> Pruned:
    """Return what a plan would do. `size_of` says how many bytes an object has on the disk."""
    return Pruned(
        run,
        dry_run=True,
        busy=str(plan.busy) if plan.busy else "",
        dropped=tuple(c.step for c in plan.retention.dropped) if plan.retention else (),
        deleted=plan.collection.keys,
        rewritten=plan.compaction.packs,
        spared=plan.collection.spared,
        freed=freed_by(plan, size_of),
    )


def carried_out(
    run: str,
    repository: Repository,
    *,
    keep_last: int | None,
    agreed: Callable[[Sequence[Commit]], None] = lambda _: None,
) -> Pruned:
    """Prune a run: keep `keep_last` checkpoints (None: all), and delete what is dead.

    `agreed` is called with the checkpoints that there are once the run is taken and nobody else can change it any more. What
    it raises goes on to the caller, and nothing was deleted.

    Raises:
        RunBusy: a process of this machine works on the run.
        StoreError: the store failed; every checkpoint that counts is whole.
    """
    before = sum(sizes_of(repository.store).values())
    with repository.writer() as writer:
        commits = repository.commits()
        agreed(commits)
        retention = None if keep_last is None else retention_now(repository.store, commits, keep_last)
        collected, compacted = writer.prune(retention)
    return Pruned(
        run,
        dry_run=False,
        busy="",
        dropped=tuple(c.step for c in retention.dropped) if retention else (),
        deleted=collected.keys,
        rewritten=tuple(compacted.packs),
        spared=collected.spared,
        freed=before - sum(sizes_of(repository.store).values()),
        damaged=tuple(compacted.faults),
        missing_room=compacted.missing_room,
    )

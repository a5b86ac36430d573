"""What pruning a run has done, or would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unbroken.repo.collect import Spared
from unbroken.repo.fault import ObjectFault
from unbroken.repo.pruning import PrunePlan
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

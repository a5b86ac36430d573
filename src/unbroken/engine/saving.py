"""One save from its snapshot to retention: the same in a thread of the training and in another process.

Touches nothing but the snapshot and the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from unbroken.engine.metadata import inspected
from unbroken.engine.settings import Settings
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo.retention import Best, RetentionPlan, plan_retention
from unbroken.state.snapshot import Snapshot
from unbroken.types import Sequence

Inspector: TypeAlias = Callable[[Snapshot], Collection[str] | Mapping[str, str]]
"""Returns the places of weights that hold NaN or infinity. Looks at the snapshot and at nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Which checkpoints stay after a save; see `retention`."""

    keep_last: int
    best: Best | None = None
    keep_first: bool = False
    damaged: frozenset[Sequence] = frozenset()

    @classmethod
    def under(cls, settings: Settings, *, damaged: frozenset[Sequence]) -> Keeping:
        """Return what stays under these settings, if so many were found `damaged`."""
        return cls(
            keep_last=settings.keep_last,
            best=settings.best_by,
            keep_first=settings.keep_first,
            damaged=damaged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be done with a snapshot.

    `sick` are the places of weights that hold NaN or infinity, if that was found out already;
    `sick_from_birth` those at the beginning of the run, None until its first checkpoint tells.
    """

    meta: Meta
    keeping: Keeping
    sick: frozenset[str] | None = None
    sick_from_birth: frozenset[str] | None = None


Committed: TypeAlias = Callable[[frozenset[str]], None]
"""Called once the snapshot is durable, with the places that were sick from birth."""

Carry: TypeAlias = Callable[[Committed], str]
"""Carries out a save, here or by asking another process for its outcome; see `carry_out`."""


class Writes(Protocol):
    """What carries a snapshot into the store: the writer of a run, or of one rank's part in it."""

    def write(self, snapshot: Snapshot, meta: Meta) -> object: ...

    def commits(self) -> list[Commit]: ...

    def pinned(self) -> Mapping[Sequence, str]: ...

    def aside(self) -> frozenset[Sequence]: ...

    def record(self, plan: RetentionPlan, *, durable: float | None) -> str: ...

    def retain(self, plan: RetentionPlan) -> object: ...


def carry_out(
    order: Order,
    snapshot: Snapshot,
    writer: Writes,
    *,
    inspect: Inspector | None,
    committed: Committed,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Write `snapshot`, tell that it is committed, put the save on record, and delete what need not stay.

    Returns why the save could not be put on record, an empty string if it could: no checkpoint depends on that.
    Raises as `CheckpointWriter.write` and `retain` do.
    """
    sick = order.sick
    if sick is None:
        sick = frozenset(inspect(snapshot) if inspect is not None else ())
    from_birth = sick if order.sick_from_birth is None else order.sick_from_birth
    began = clock()
    writer.write(snapshot, inspected(order.meta, sick=sick, sick_from_birth=from_birth))
    durable = clock() - began
    committed(from_birth)
    keeping = order.keeping
    plan = plan_retention(
        writer.commits(),
        keep_last=keeping.keep_last,
        best=keeping.best,
        keep_first=keeping.keep_first,
        damaged=keeping.damaged | writer.aside(),
        pinned=writer.pinned(),
    )
    unrecorded = writer.record(plan, durable=durable)
    writer.retain(plan)
    return unrecorded

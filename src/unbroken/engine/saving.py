"""One save from its snapshot to retention: the same in a thread of the training and in another process.

Touches nothing but the snapshot and the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from unbroken.engine.full_disk import Writes, write
from unbroken.engine.keeping import Keeping
from unbroken.engine.metadata import inspected
from unbroken.format.meta import Meta
from unbroken.state.snapshot import Snapshot

Inspector: TypeAlias = Callable[[Snapshot], Collection[str] | Mapping[str, str]]
"""Returns the places of weights that hold NaN or infinity. Looks at the snapshot and at nothing else."""


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be said of a save that was carried out; empty strings where there is nothing."""

    unrecorded: str = ""
    """Why the save could not be put on record: no checkpoint depends on that."""
    relieved: str = ""
    """What was deleted for it because the disk was full."""


Carry: TypeAlias = Callable[[Committed], Outcome]
"""Carries out a save, here or by asking another process for its outcome; see `carry_out`."""


def carry_out(
    order: Order,
    snapshot: Snapshot,
    writer: Writes,
    *,
    inspect: Inspector | None,
    committed: Committed,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Write `snapshot`, tell that it is committed, put the save on record, and delete what need not stay.

    On a full disk the oldest checkpoints go before; see `full_disk`. Raises as `CheckpointWriter.write` and `retain` do.
    """
    sick = order.sick
    if sick is None:
        sick = frozenset(inspect(snapshot) if inspect is not None else ())
    from_birth = sick if order.sick_from_birth is None else order.sick_from_birth
    began = clock()
    meta = inspected(order.meta, sick=sick, sick_from_birth=from_birth)
    relieved = write(snapshot, meta, writer, order.keeping)
    durable = clock() - began
    committed(from_birth)
    plan = order.keeping.plan(writer)
    unrecorded = writer.record(plan, durable=durable)
    writer.retain(plan)
    return Outcome(unrecorded, relieved)

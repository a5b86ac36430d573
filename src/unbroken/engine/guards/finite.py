"""Weights with NaN or infinity, looked for before anything live is touched.

The save looks, too, and says `good: false`. This is for a checkpoint that says that it is good and is not: it was written
by somebody who did not look, or was signed off by a number that spoiled the weights later on its way.

Not promised: that infinity is a fault where the run began with it. Such places are on record and are left out.
"""

from __future__ import annotations

from unbroken.engine.metadata import not_finite_at_birth
from unbroken.engine.source import InspectsWeights, Source
from unbroken.errors import Rejected
from unbroken.format.meta import Meta
from unbroken.state.snapshot import Snapshot

SHOWN = 3


def check_finite(source: Source, saved: Snapshot, meta: Meta, *, rank: int = 0) -> None:
    """Look at the weights of a saved state: of several ranks, at those that are for this one.

    Raises:
        Rejected: they hold NaN or infinity, and did not when the run began.
    """
    if not isinstance(source, InspectsWeights):
        return
    spoiled = sorted(set(source.sick_places(saved)) - not_finite_at_birth(meta, rank=rank))
    if spoiled:
        more = f" and {len(spoiled) - SHOWN} more" if len(spoiled) > SHOWN else ""
        raise Rejected(
            f"it is called good, and its weights hold NaN or infinite values at {', '.join(spoiled[:SHOWN])}{more};"
            " name its step to take it all the same"
        )

"""How much memory the coming snapshots will take, so that it is touched before training starts.

Optimizers make their moments at their first step. A run's first snapshot therefore shows a third of what
those after it hold, and the first of them would have to wait for fresh memory.

Not promised: optimizers of other libraries, and states whose size only training decides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from unbroken.state.snapshot import Rows, Snapshot

_MOMENTS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "RMSprop": 1}
_OPTIONAL = ("amsgrad", "momentum", "centered")
"""Options of a group that cost one tensor more for each parameter."""


def expected_bytes(snapshot: Snapshot, objects: Iterable[object]) -> int:
    """Return the bytes that have to be copied in a save when every optimizer has made its state: of what
    `snapshot` left in live memory without the rows of rings, and of what `objects`, met in its walk, lack."""
    present = sum(
        blob.nbytes
        for component in snapshot.components.values()
        for i in component.live
        if not isinstance(blob := component.blobs[i], Rows)
    )
    return present + sum(missing_moments(met) for met in objects)


def missing_moments(value: object) -> int:
    """Return the bytes of the state that an optimizer of torch has still to make; 0 for anything else."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.optim.Optimizer):
        return 0
    optimizer: Any = value
    usual = _MOMENTS.get(type(optimizer).__name__, 0)
    return sum(
        (usual + sum(bool(group.get(option)) for option in _OPTIONAL)) * int(parameter.nbytes)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter not in optimizer.state
    )

"""Lists of what has its home elsewhere: the parameters of an optimizer.

A training may hold an optimizer of other parameters than the script has built. Each entry that was saved is bound
to the object at its home (in a module, under a name of its own), whatever stood at its number in the list.
What belongs to nothing else has no other place than its number, so of these there must be as many as were saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unbroken.state.nodes import Coded, Value
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_bound(graft: Graft, values: list[Value], had: list[Any]) -> list[Any]:
    """Return the objects to use for the entries of a list of the program that holds, or held, `had`."""
    twins: list[Any] = [graft.home_below(str(i)) for i in range(len(values))]
    grown = {i for i in range(len(values)) if twins[i] is MISSING and graft.grows_below(str(i))}
    strays = [
        i
        for i, value in enumerate(values)
        if i not in grown and _is_part(graft, value) and twins[i] is MISSING
    ]
    spare = [item for item in had if graft.is_part(type(item)) and not graft.has_home(item)]
    if len(strays) != len(spare):
        graft.error(
            f"{len(values)} were saved and the program has {len(had)}, of which {len(strays)} and {len(spare)} belong"
            " to nothing that is tracked; track what they belong to."
        )
        for i in strays:
            graft.bind(values[i], None)  # type: ignore[arg-type]
        spare = [None] * len(strays)
    for i, item in zip(strays, spare, strict=True):
        twins[i] = item
    for i, item in enumerate(had[: len(values)]):
        if twins[i] is MISSING and not graft.is_part(type(item)):
            twins[i] = item
    planned: list[Any] = []
    for i, (value, twin) in enumerate(zip(values, twins, strict=True)):
        with graft.growth.elsewhere(grows=i in grown):
            planned.append(graft.value(str(i), value, twin))
    return planned


def _is_part(graft: Graft, value: Value) -> bool:
    if not isinstance(value, Coded):
        return False
    cls = graft.loaded_class(value.c, MISSING)
    return cls is not None and graft.is_part(cls)

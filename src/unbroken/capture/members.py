"""A root that holds members by name, of which a program may have more or fewer than a checkpoint.

A callback that was added starts as the program built it; one that is gone is left out of the checkpoint. Both
are said, and neither is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from unbroken.state import graft
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Dict, Value
from unbroken.state.pickles import Trust
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot


def saved_root(saved: Snapshot, name: str) -> Value:
    """Return what stands at a root of a saved state; None if it has none of this name."""
    for component in saved.components.values():
        if name in component.roots:
            return component.roots[name]
    return None


def plan_with_members(
    saved: Snapshot,
    roots: Mapping[str, object],
    policy: Policy,
    *,
    root: str,
    keep: Sequence[str] = (),
    trusted: Trust = False,
) -> Graft:
    """Lay `saved` over `roots`, of whose root `root`, a dict, only the members that both sides have."""
    node, live = saved_root(saved, root), roots[root]
    known = list(node.v) if isinstance(node, Dict) and node.v is not None else []
    held: dict[str, object] = dict(live) if isinstance(live, dict) else {}
    both = {name: member for name, member in held.items() if name in known}
    plan = graft.plan(
        _without(saved, root, [name for name in known if name not in both]),
        {**roots, root: both},
        policy,
        keep=keep,
        trusted=trusted,
    )
    for names, level, detail in (
        ([n for n in held if n not in known], "fresh", "was not saved and starts as built."),
        ([n for n in known if n not in both], "lost", "was saved and the program has it no more."),
    ):
        plan.differences += [
            Difference(level, place, detail)
            for place in (f"{root}/{name}" for name in names)
            if place not in keep
        ]
    return plan


def _without(saved: Snapshot, root: str, names: list[str]) -> Snapshot:
    """Return `saved` without these members."""
    if not names:
        return saved
    gone = {f"{root}/{name}" for name in names}
    changed = copy(saved)
    changed.components = {}
    for key, component in saved.components.items():
        kept = copy(component)
        kept.roots = {place: node for place, node in component.roots.items() if not _below(place, gone)}
        node = kept.roots.get(root)
        if isinstance(node, Dict) and node.v is not None:
            kept.roots[root] = Dict(id=node.id, v={k: v for k, v in node.v.items() if k not in names})
        changed.components[key] = kept
    return changed


def _below(place: str, tops: set[str]) -> bool:
    return any(place == top or place.startswith(f"{top}/") for top in tops)

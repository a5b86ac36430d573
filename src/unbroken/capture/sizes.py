"""Vectors of environments that a loop has built with another number of them than was saved.

Nothing in such a vector fits: its tables, its wrappers' counts, its environments. It is laid over as a whole
or not at all. So another number is refused by name, wherever the vector stands, and where a person lets it pass,
the vector stays as the script has built it.

Not promised: what else of a loop depends on the number, such as observations in `run.vars`; a vector that stands
elsewhere in the program than it did when it was saved.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from unbroken.engine.changes import within
from unbroken.state import graft, walk
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Link, Object, Ref, Value
from unbroken.state.pickles import Trust
from unbroken.state.places import index, visit
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, Snapshot

COUNT = "num_envs"
"""Attribute of a vector."""
NAME = "n_envs"
"""What a person calls it; see `engine.changes.ALIKE`."""
_MOST_LAYERS = 64


def plan(
    saved: Snapshot, roots: Mapping[str, object], policy: Policy, *, keep: Sequence[str], trusted: Trust
) -> Graft:
    """Lay `saved` over the roots, as `graft.plan` does, vectors of another number left as they are."""
    found = resized(saved, roots, policy)
    made = graft.plan(saved, roots, policy, keep=[*keep, *found], trusted=trusted)
    for place, (before, after) in found.items():
        count = f"{place}/{COUNT}"
        if not within(count, keep):
            why = (
                f"{before} environments were saved and the program has {after};"
                f' allow_changed={{"{NAME}"}} keeps those that the script has built.'
            )
            made.differences.append(Difference("error", count, why))
    for place in references(saved, found):
        made.differences.append(Difference("kept", place, "is met in a vector of environments."))
    return made


def resized(saved: Snapshot, roots: Mapping[str, object], policy: Policy) -> dict[str, tuple[int, int]]:
    """Return the places of vectors of another number of environments: how many were saved, and are there.

    A vector inside another one goes with that.
    """
    vectors: Any = getattr(sys.modules.get("gymnasium.vector"), "VectorEnv", None)
    objects = {at: node for _, at, node in nodes(saved) if isinstance(node, Object)}
    if vectors is None or not any(type(node.a.get(COUNT)) is int for node in objects.values()):
        return {}
    seen: set[str] = set()
    found: dict[str, tuple[int, int]] = {}
    for value, tell in walk.walk(roots, policy, contents=False).places():
        if not isinstance(value, vectors):
            continue
        place = tell()
        if within(place, seen):
            continue
        seen.add(place)
        before, after = _saved_count(objects, place), getattr(value, COUNT)
        if before is not None and before != after:
            found[place] = (before, after)
    return found


def _saved_count(objects: Mapping[str, Object], place: str) -> int | None:
    for _ in range(_MOST_LAYERS):
        layer = objects.get(place)
        if layer is None:
            return None
        count = layer.a.get(COUNT)
        if type(count) is int:
            return count
        place += "/env"
    return None


def nodes(snapshot: Snapshot) -> Iterator[tuple[Component, str, Value]]:
    """Yield every node with its component and its place; what is in other processes is not entered."""
    for component in snapshot.components.values():
        for root, value in component.roots.items():
            for place, node in visit(root, value):
                yield component, place, node


def references(snapshot: Snapshot, gone: Collection[str]) -> Iterator[str]:
    """Yield the places from which something is referred to that stands at, or below, the places `gone`."""
    if not gone:
        return
    numbers = index(snapshot).place_of_number
    for _, place, node in nodes(snapshot):
        if isinstance(node, (Ref, Link)):
            to = numbers.get(node.to, "") if isinstance(node, Ref) else node.to
            if to != place and within(to, gone) and not within(place, gone):
                yield place

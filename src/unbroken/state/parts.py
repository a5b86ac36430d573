"""One state that several processes hold together: which component is whose.

In a checkpoint of several ranks a component that each rank has for itself carries the rank in its name,
``replay_buffer@rank1``. One without such a name is the same on every rank and is there once. Inside of a
part everything is named as if it stood alone, links to other components included: what a rank gets to see
is a `view`, in which its own components have lost their label.

Numbers of objects are unique within one component of a labelled snapshot, and within the whole of a view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from unbroken.state.nodes import Identity, Ref, Scope, Value, children
from unbroken.state.snapshot import Component, Recheck, Snapshot

_MARK = "@rank"


def rank_name(component: str, rank: int) -> str:
    """Return the name of what one rank has of a component.

    >>> rank_name("replay_buffer", 1)
    'replay_buffer@rank1'
    """
    return f"{component}{_MARK}{rank}"


def split_name(name: str) -> tuple[str, int | None]:
    """Return a component's own name, and whose it is; None where it is everybody's.

    >>> split_name("replay_buffer@rank1"), split_name("policy_weights")
    (('replay_buffer', 1), ('policy_weights', None))
    """
    own, mark, digits = name.rpartition(_MARK)
    if not mark or not (digits.isascii() and digits.isdigit()):
        return name, None
    return own, int(digits)


def ranks_in(names: Iterable[str]) -> list[int]:
    """Return the ranks that have components of their own, in ascending order."""
    return sorted({rank for name in names if (rank := split_name(name)[1]) is not None})


def numbered_together(names: Iterable[str]) -> list[list[str]]:
    """Return the components of a labelled snapshot in groups, within each of which numbers are unique."""
    everybodys: list[list[str]] = []
    own: dict[int, list[str]] = {}
    for name in names:
        rank = split_name(name)[1]
        if rank is None:
            everybodys.append([name])
        else:
            own.setdefault(rank, []).append(name)
    return [*everybodys, *own.values()]


def labelled(snapshot: Snapshot, rank: int, *, replicated: Collection[str]) -> Snapshot:
    """Return the snapshot with every component but the replicated ones under this rank's name.

    Contents are shared with `snapshot`. Objects of replicated components are numbered anew, in `snapshot`
    too: the numbers must not depend on what else a rank has, or equal states would give unequal documents.
    """
    found = replace(snapshot, components={}, promises={})
    for name, component in snapshot.components.items():
        if name in replicated:
            _renumber(component, 0)
            found.components[name] = component
        else:
            found.components[rank_name(name, rank)] = replace(component, name=rank_name(name, rank))
    for name, promise in snapshot.promises.items():
        found.promises[name if name in replicated else rank_name(name, rank)] = promise
    return found


def view(snapshot: Snapshot, rank: int, *, lent: Collection[str] = ()) -> Snapshot:
    """Return what one rank has: the components of all, and its own without their label; and what is `lent`,
    which are labels of another rank whose part it has none of, as if they were its own."""
    found = replace(snapshot, components={}, promises={})
    labels: dict[str, str] = {}
    numbers = 0
    for label, component in snapshot.components.items():
        name, owner = split_name(label)
        if owner is None or owner == rank or label in lent:
            found.components[name] = own = replace(component, name=name)
            numbers = _renumber(own, numbers)
            labels[name] = label
            if label in snapshot.promises:
                found.promises[name] = snapshot.promises[label]
    if snapshot.recheck is not None:
        found.recheck = partial(_rechecked, snapshot.recheck, labels)
    return found


def _rechecked(
    recheck: Recheck, labels: Mapping[str, str], blobs: Collection[tuple[str, int]]
) -> list[tuple[str, int]]:
    names = {label: name for name, label in labels.items()}
    return [(names[label], i) for label, i in recheck([(labels[name], i) for name, i in blobs])]


def _renumber(component: Component, start: int) -> int:
    """Number the objects that are referred to from `start` + 1 on, in the order in which they are met."""
    met: list[Identity] = []
    refs: list[Ref] = []
    stack: list[Value] = [*reversed(component.roots.values())]
    while stack:
        node = stack.pop()
        if node is None or isinstance(node, (bool, int, float, str)):
            continue
        if isinstance(node, Ref):
            refs.append(node)
        elif isinstance(node, Identity) and node.id:
            met.append(node)
        if not isinstance(node, Scope):  # one is another process, with numbers of its own
            stack.extend(reversed([child for _, child in children(node)]))
    numbers = {node.id: start + i for i, node in enumerate(met, 1)}
    for owner in met:
        owner.id = numbers[owner.id]
    for ref in refs:
        # A number that nobody has is left as it is: whoever follows it says so.
        ref.to = numbers.get(ref.to, ref.to)
    return start + len(met)

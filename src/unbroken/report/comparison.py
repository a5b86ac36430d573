"""What differs between two checkpoints, component by component.

Invariant: "equal" is never said without a word of what a component does not promise. Two states may be
equal only because the part that differs is in neither of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from unbroken.capture.volatile import without_clocks
from unbroken.engine.changes import within
from unbroken.report.quantity import number
from unbroken.report.table import Cell, Column, Table
from unbroken.report.tree import leaves
from unbroken.report.views import viewed
from unbroken.state.diff import LeafDifference, compare
from unbroken.state.nodes import Coded
from unbroken.state.places import everything
from unbroken.state.snapshot import Component, Promise, Snapshot
from unbroken.types import Fidelity, worse

PLACE_WIDTH = 100
VALUE_WIDTH = 40
EXACT = Promise(Fidelity.EXACT)

_FIELD = re.compile(r"""^["']?([a-z]) (\\?'|")(.*)\\?\2["']?$""")
"""A field of a node, as a difference shows it: its letter and its value."""
_FIELDS = {"c": "class", "q": "name", "n": "method", "h": "code", "k": "kind"}
_NODE = re.compile(r"^(?:object|coded|class|function|method) (?=\S)")
_MODULE = re.compile(r"^[\w.]+:(?=\w)")
"""The module before the name of a class or a function."""
_GENERATORS = frozenset(
    {
        "numpy.bitgenerator",
        "numpy.generator",
        "numpy.randomstate",
        "numpy.seedsequence",
        "python.random",
        "torch.generator",
    }
)
"""Kinds of what generators of random numbers are kept as."""
_WORDS = re.compile(r"-?\d{10,}$|[<>=]u[48]\[")
"""Whole numbers of 32 bits and more, and arrays of them without a sign: states of other generators, hashes, masks."""


@dataclass(frozen=True, slots=True)
class ComponentComparison:
    """One component of two checkpoints.

    `leaves` is how many there are to compare; `promise` the worse of what the two promise.
    `differences` is in the order in which the state is walked, the tensors of modules before the rest.
    """

    component: str
    differences: tuple[LeafDifference, ...] = ()
    leaves: int = 0
    promise: Promise = EXACT
    note: str = ""
    """What else to know of how it was compared."""

    @property
    def equal(self) -> bool:
        return not self.differences

    @property
    def first(self) -> LeafDifference | None:
        """The first differing leaf."""
        return self.differences[0] if self.differences else None


def compared(a: Snapshot, b: Snapshot, *, wall_clock: bool = False) -> tuple[ComponentComparison, ...]:
    """Compare two states, as their views have them. Leaves that hold wall-clock times count only with `wall_clock`."""
    a, b, notes = viewed(a, b)
    found = compare(a, b)
    if not wall_clock:
        found = without_clocks(found, a, b)
    found = without_sizes_of_words(found, a, b)
    names = sorted({*a.components, *b.components})
    return tuple(
        ComponentComparison(
            name,
            _weights_first((d for d in found if d.component == name), a, b),
            max(_count(snapshot.components.get(name)) for snapshot in (a, b)),
            worse(a.promises.get(name, EXACT), b.promises.get(name, EXACT)),
            notes.get(name, ""),
        )
        for name in names
    )


def without_sizes_of_words(found: Iterable[LeafDifference], *snapshots: Snapshot) -> list[LeafDifference]:
    """Return differences; those of words of a generator without a size, which means nothing there."""
    differences = list(found)
    if not differences:
        return []
    generators = frozenset[str]().union(*map(_generators, snapshots))
    return [
        replace(leaf, distance=None)
        if _WORDS.match(leaf.before) or _WORDS.match(leaf.after) or within(leaf.place, generators)
        else leaf
        for leaf in differences
    ]


def _generators(snapshot: Snapshot) -> frozenset[str]:
    """Return the place of every generator in a state, in worker processes too."""
    return frozenset(
        at for at, node in everything(snapshot) if isinstance(node, Coded) and node.k in _GENERATORS
    )


def _weights_first(differences: Iterable[LeafDifference], *snapshots: Snapshot) -> tuple[LeafDifference, ...]:
    """Return differences with those in the tensors of modules first: they are what people look for."""
    weights = frozenset(
        place
        for snapshot in snapshots
        for component in snapshot.components.values()
        for table in component.tensors.values()
        for place in table.values()
    )
    return tuple(sorted(differences, key=lambda d: not within(d.place, weights)))


def _count(component: Component | None) -> int:
    return 0 if component is None else sum(1 for _ in leaves(component))


def comparison_table(rows: Sequence[ComponentComparison], *, title: str = "") -> Table:
    """Return the table of components; what differs has columns only where something does."""
    columns = [Column("component"), Column("result"), Column("leaves", numeric=True)]
    differs = any(not row.equal for row in rows)
    if differs:
        columns += [Column("differ", numeric=True), Column("first differing leaf"), Column("off by")]
    table = Table(columns, title=title)
    for row in rows:
        first = row.first
        if first is not None:
            far = (number(len(row.differences)), shortened(first.place), off_by(first))
            table.add(row.component, Cell("different", "bad"), number(row.leaves), *far)
        else:
            nothing = ("0", "-", "-") if differs else ()
            table.add(row.component, _equal(row), number(row.leaves), *nothing)
    return table


def _equal(row: ComponentComparison) -> Cell:
    promise = row.promise
    if row.note:
        return Cell("equal as far as read", "bad")
    if promise.fidelity is Fidelity.EXACT:
        return Cell("equal", "good")
    if promise.fidelity is Fidelity.APPROXIMATE:
        return Cell("equal, approximate", "quiet")
    return Cell("equal as far as captured", "bad")


def promises_told(rows: Iterable[ComponentComparison]) -> list[str]:
    """Return one line for each component that does not promise to be exact, with its reason, and for each note."""
    told: list[str] = []
    for row in rows:
        if row.promise.fidelity is not Fidelity.EXACT:
            told.append(f"{row.component} is {row.promise.fidelity.value}: {row.promise.reason}")
        if row.note:
            told.append(f"{row.component} was {row.note}")
    return told


def off_by(leaf: LeafDifference) -> str:
    """Return how far apart a leaf's two values are, in words.

    >>> off_by(LeafDifference(place="lr", component="model", before="0.1", after="0.2", distance=None))
    '0.1 -> 0.2'
    """
    if leaf.distance is not None:
        return f"{leaf.distance:.3g}"
    if leaf.before == leaf.after:  # arrays of one type and shape, whose difference has no size
        return "other contents"
    other = _another(leaf)
    words = f"another {other}: " if other else ""
    return f"{words}{cut(plain(leaf.before))} -> {cut(plain(leaf.after))}"


def plain(text: str) -> str:
    """Return one side of a difference without the letters and modules of the tree in which it is stored.

    >>> plain("object torch.optim.adam:Adam"), plain("c 'gymnasium.core:Env'"), plain("absent")
    ('Adam', 'Env', 'absent')
    """
    found = _FIELD.match(text)
    value = found[3] if found is not None and found[1] in _FIELDS else _NODE.sub("", text)
    return _MODULE.sub("", value) if value != text else text


def _another(leaf: LeafDifference) -> str:
    """Return which property of the object at a place differs, if it is not a value that does."""
    a, b = _FIELD.match(leaf.before), _FIELD.match(leaf.after)
    return _FIELDS.get(a[1], "") if a is not None and b is not None and a[1] == b[1] else ""


def classes_told(rows: Iterable[ComponentComparison]) -> list[str]:
    """Return one line for each outermost object that is of another class: what makes all else differ."""
    return [
        f"{leaf.place}: {plain(leaf.before)} in A, {plain(leaf.after)} in B"
        for row in rows
        for leaf in row.differences
        if "/" not in leaf.place and _another(leaf) == "class"
    ]


def cut(text: object) -> str:
    words = str(text)
    return words if len(words) <= VALUE_WIDTH else words[: VALUE_WIDTH - 1] + "…"


def shortened(place: str) -> str:
    """Return a place with its middle left out, if it is long: both ends tell more than the middle."""
    if len(place) <= PLACE_WIDTH:
        return place
    half = PLACE_WIDTH // 2
    return f"{place[:half]}…{place[1 - half :]}"

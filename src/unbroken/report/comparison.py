"""What differs between two checkpoints, component by component."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unbroken.report.table import Cell, Column, Table
from unbroken.state.diff import LeafDifference

PLACE_WIDTH = 100
VALUE_WIDTH = 40


@dataclass(frozen=True, slots=True)
class ComponentComparison:
    """One component of two checkpoints. `differences` is in the order in which the state is walked."""

    component: str
    differences: tuple[LeafDifference, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences

    @property
    def first(self) -> LeafDifference | None:
        """The first differing leaf."""
        return self.differences[0] if self.differences else None


def by_component(
    components: Sequence[str], differences: Iterable[LeafDifference]
) -> tuple[ComponentComparison, ...]:
    """Group differences by their component; components without any are equal."""
    found: dict[str, list[LeafDifference]] = {name: [] for name in components}
    for difference in differences:
        found.setdefault(difference.component, []).append(difference)
    return tuple(ComponentComparison(name, tuple(leaves)) for name, leaves in found.items())


def comparison_table(rows: Sequence[ComponentComparison], *, title: str = "") -> Table:
    """Return the table of components: equal, or the first differing leaf and how far off it is."""
    columns = (
        Column("component"),
        Column("result"),
        Column("leaves", numeric=True),
        Column("first differing leaf"),
        Column("off by"),
    )
    table = Table(columns, title=title)
    for row in rows:
        first = row.first
        if first is None:
            table.add(row.component, Cell("equal", "good"), "", "", "")
        else:
            count = str(len(row.differences))
            table.add(row.component, Cell("different", "bad"), count, shortened(first.place), off_by(first))
    return table


def off_by(leaf: LeafDifference) -> str:
    """Return how far apart a leaf's two values are, in words.

    >>> off_by(LeafDifference(place="lr", component="model", before="0.1", after="0.2", distance=None))
    '0.1 -> 0.2'
    """
    if leaf.distance is not None:
        return f"{leaf.distance:.3g}"
    return f"{cut(leaf.before)} -> {cut(leaf.after)}"


def cut(text: object) -> str:
    words = str(text)
    return words if len(words) <= VALUE_WIDTH else words[: VALUE_WIDTH - 1] + "…"


def shortened(place: str) -> str:
    """Return a place with its middle left out, if it is long: both ends tell more than the middle."""
    if len(place) <= PLACE_WIDTH:
        return place
    half = PLACE_WIDTH // 2
    return f"{place[:half]}…{place[1 - half :]}"

"""Which differences between two states are only those of clocks: the source names the places."""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.engine.changes import within
from unbroken.engine.source import NamesVolatile, Source
from unbroken.state.diff import LeafDifference
from unbroken.state.snapshot import Snapshot


def without_clocks(source: Source, state: Snapshot, found: Iterable[LeafDifference]) -> list[LeafDifference]:
    """Return the differences to `state` that are not at, or below, a place that holds wall-clock time."""
    others = list(found)
    if not others or not isinstance(source, NamesVolatile):
        return others
    clocks = source.volatile(state)
    return [difference for difference in others if not within(difference.place, clocks)]

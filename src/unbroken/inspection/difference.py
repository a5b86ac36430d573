"""Two checkpoints, leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.format.records import Commit
from unbroken.inspection.target import Target
from unbroken.report.comparison import ComponentComparison, compared
from unbroken.state.diff import LeafDifference


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the checkpoint `before`, which lies at `a`, and `after`, which lies at `b`."""

    before: Commit
    after: Commit
    a: str
    b: str
    components: tuple[ComponentComparison, ...]

    @property
    def leaves(self) -> tuple[LeafDifference, ...]:
        """Every leaf that differs."""
        return tuple(leaf for component in self.components for leaf in component.differences)


def difference(left: Target, right: Target, *, wall_clock: bool = False) -> Difference:
    """Compare two checkpoints. Times by the wall clock count only with `wall_clock`.

    Raises:
        ConfigError: there is no such checkpoint.
        CorruptObject: one is damaged.
    """
    before, was = left.read(lambda commit: (commit, left.repository.load(commit)))
    after, now = right.read(lambda commit: (commit, right.repository.load(commit)))
    components = compared(was, now, wall_clock=wall_clock)
    return Difference(before, after, left.place(before), right.place(after), components)

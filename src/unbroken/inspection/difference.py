"""Two checkpoints, leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unbroken.format.records import Commit
from unbroken.inspection.target import Target
from unbroken.report.comparison import ComponentComparison, compared
from unbroken.state.diff import ABSENT, LeafDifference


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the checkpoint `before`, which lies at `a`, and `after`, which lies at `b`: of one run, or of two."""

    before: Commit
    after: Commit
    a: str
    b: str
    components: tuple[ComponentComparison, ...]
    only_a: tuple[str, ...] = ()
    """Components that only `before` has."""
    only_b: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[LeafDifference, ...]:
        """Every leaf that differs."""
        return tuple(leaf for component in self.components for leaf in component.differences)

    def leaves_only_in(self, side: Literal["a", "b"]) -> int:
        """Return how many leaves only one of the two has, in components that both have."""
        apart = {*self.only_a, *self.only_b}
        missing = [
            leaf.after if side == "a" else leaf.before for leaf in self.leaves if leaf.component not in apart
        ]
        return missing.count(ABSENT)


def difference(left: Target, right: Target, *, wall_clock: bool = False) -> Difference:
    """Compare two checkpoints. Times by the wall clock count only with `wall_clock`.

    Raises:
        ConfigError: there is no such checkpoint.
        CorruptObject: one is damaged.
    """
    before, was = left.read(lambda commit: (commit, left.repository.load(commit)))
    after, now = right.read(lambda commit: (commit, right.repository.load(commit)))
    components = compared(was, now, wall_clock=wall_clock)
    only_a, only_b = was.components.keys() - now.components, now.components.keys() - was.components
    return Difference(
        before,
        after,
        left.place(before),
        right.place(after),
        components,
        tuple(sorted(only_a)),
        tuple(sorted(only_b)),
    )

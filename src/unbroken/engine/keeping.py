"""Which checkpoints of a run stay, as the settings of its training say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from unbroken.engine.settings import Settings
from unbroken.format.records import Commit
from unbroken.repo.retention import Best, RetentionPlan, plan_retention
from unbroken.types import Sequence


class Holds(Protocol):
    """What knows the checkpoints of a run, and which of them somebody holds on to."""

    def commits(self) -> list[Commit]: ...

    def pinned(self) -> Mapping[Sequence, str]: ...

    def aside(self) -> frozenset[Sequence]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Which checkpoints stay after a save; see `retention`."""

    keep_last: int
    best: Best | None = None
    keep_first: bool = False
    damaged: frozenset[Sequence] = frozenset()
    resumed: int | None = None
    """The step that every start is told to go on from; None where it is not told one."""

    @classmethod
    def under(cls, settings: Settings, *, damaged: frozenset[Sequence]) -> Keeping:
        """Return what stays under these settings, if so many were found `damaged`."""
        return cls(
            keep_last=settings.keep_last,
            best=settings.best_by,
            keep_first=settings.keep_first,
            damaged=damaged,
            resumed=None if isinstance(settings.resume, str) else settings.resume,
        )

    def plan(self, run: Holds) -> RetentionPlan:
        """Return what stays of a run after a save."""
        return plan_retention(
            run.commits(),
            keep_last=self.keep_last,
            best=self.best,
            keep_first=self.keep_first,
            damaged=self.damaged | run.aside(),
            pinned=run.pinned(),
        )

"""Which checkpoints of a run stay, as the settings of its training say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def held(self, run: Holds, commits: Iterable[Commit]) -> dict[Sequence, str]:
        """Return which of `commits` stay whatever is counted, and why: what somebody holds on to, and what the next
        start is told to go on from. Without that one it could only stop."""
        held = dict(run.pinned())
        gone = self.damaged | run.aside()
        segments: set[int] = set()
        for commit in sorted(commits, key=lambda commit: commit.sequence, reverse=True):
            # Of each segment the newest with that step is taken, so those that it was saved anew over may go.
            named = commit.step == self.resumed and commit.sequence not in gone
            if named and commit.segment not in segments:
                segments.add(commit.segment)
                held.setdefault(commit.sequence, f"resume={self.resumed}")
        return held

    def plan(self, run: Holds) -> RetentionPlan:
        """Return what stays of a run after a save."""
        commits = run.commits()
        return plan_retention(
            commits,
            keep_last=self.keep_last,
            best=self.best,
            keep_first=self.keep_first,
            damaged=self.damaged | run.aside(),
            pinned=self.held(run, commits),
        )

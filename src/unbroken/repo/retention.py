"""Which commits to keep: a pure plan that can be printed before anything is deleted.

Invariants: a commit that can be used is always kept if any exists; and as long as a good one exists,
a good one is kept, however many bad ones (non-finite weights) came after it.

Not promised: that disk space is gained. Packs are shared by checkpoints; `collect.py` finds out
which of them nobody needs any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from unbroken.errors import ConfigError, shown
from unbroken.format.records import Commit
from unbroken.types import Sequence

_ORDER = {"start": 0, "step": 1, "end": 2}
"""Positions at one step, in the order in which they are reached."""


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the commit whose `metric` is largest (`mode="max"`) or smallest.

    Raises:
        ConfigError: there is no metric, or the mode is neither.
    """

    metric: str
    mode: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        if not self.metric:
            raise ConfigError(
                "The best checkpoint needs the name of a metric.", hint='Write best=Best("eval/mean_reward").'
            )
        if self.mode not in ("max", "min"):
            raise ConfigError(
                f"The mode of a metric is 'max' or 'min', not {shown(self.mode)}.",
                hint="Leave it out where more is better.",
            )

    @classmethod
    def parse(cls, text: str) -> Best:
        """Return what `eval/mean_reward`, `eval/mean_reward:max` or `loss:min` says.

        Raises:
            ConfigError: it says no metric.
        """
        metric, _, mode = text.partition(":")
        if not metric or mode not in ("", "max", "min"):
            raise ConfigError(f"{shown(text)} is no metric.", hint="Write metric:max or metric:min.")
        return cls(metric, "min" if mode == "min" else "max")

    def choose(self, commits: Iterable[Commit]) -> Commit | None:
        """Return the best good commit; None if no good one has a finite value.

        Of equals it is the first that no later start went back before: a value stays until the next
        evaluation, and only the first checkpoint with it has what was evaluated.
        """
        sign = 1.0 if self.mode == "max" else -1.0
        every = sorted(commits, key=lambda commit: commit.sequence, reverse=True)
        left = abandoned(every) | saved_again(every)
        ranked = [
            ((sign * value, commit.sequence not in left, -commit.sequence), commit)
            for commit in every
            if commit.good and (value := commit.metrics.get(self.metric)) is not None and math.isfinite(value)
        ]
        return max(ranked, key=lambda entry: entry[0])[1] if ranked else None


def abandoned(newest_first: Iterable[Commit]) -> set[int]:
    """Return the sequence numbers of commits that the training has left behind by going back before them."""
    return _later(newest_first)[0]


def saved_again(newest_first: Iterable[Commit]) -> set[int]:
    """Return those whose step a later start has saved once more: nobody went back before them.

    So it is where a start has changed a setting, was sent back to that very step, or extends a training that had ended.
    """
    return _later(newest_first)[1]


def _later(newest_first: Iterable[Commit]) -> tuple[set[int], set[int]]:
    """Return the commits behind the point that a later one was saved at, and those at the same step."""
    behind: set[int] = set()
    same: set[int] = set()
    earliest: tuple[int, int, int] | None = None
    for commit in newest_first:
        point = (commit.segment, commit.step, _ORDER[commit.position])
        if earliest is None or point < earliest:
            earliest = point
        elif point[:2] == earliest[:2]:
            same.add(commit.sequence)
        else:
            behind.add(commit.sequence)
    return behind, same


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one commit: it is kept if there is a reason to."""

    commit: Commit
    reasons: tuple[str, ...]

    @property
    def keep(self) -> bool:
        return bool(self.reasons)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The decision on every commit, newest first. `str()` of it is a table."""

    keep_last: int
    decisions: tuple[Decision, ...]

    @property
    def kept(self) -> tuple[Commit, ...]:
        return tuple(decision.commit for decision in self.decisions if decision.keep)

    @property
    def dropped(self) -> tuple[Commit, ...]:
        return tuple(decision.commit for decision in self.decisions if not decision.keep)

    def __str__(self) -> str:
        return "\n".join(
            f"{'keep' if decision.keep else 'drop'}  {decision.commit.sequence:>6}  "
            f"step {decision.commit.step:<12}  {', '.join(decision.reasons)}".rstrip()
            for decision in self.decisions
        )


def plan_retention(
    commits: Iterable[Commit],
    *,
    keep_last: int,
    best: Best | None = None,
    keep_first: bool = False,
    damaged: Collection[Sequence] = (),
    pinned: Mapping[Sequence, str] | None = None,
) -> RetentionPlan:
    """Decide which of `commits` to keep.

    `damaged` are commits known not to load. They are kept by nothing, and the others are
    counted as if they did not exist. `pinned` are kept beside all others, with the reason given (`pins`).

    Raises:
        ConfigError: `keep_last` is below 1.
    """
    if keep_last < 1:
        raise ConfigError(
            f"At least one checkpoint must be kept, not {keep_last}.", hint="Set keep_last=1 or more."
        )
    newest_first = sorted(commits, key=lambda commit: commit.sequence, reverse=True)
    usable = [commit for commit in newest_first if commit.sequence not in damaged]
    reasons: dict[Sequence, list[str]] = {commit.sequence: [] for commit in newest_first}

    for commit in usable[:keep_last]:
        reasons[commit.sequence].append(f"one of the last {keep_last}")
    good = next((commit for commit in usable if commit.good), None)
    if good is not None and not reasons[good.sequence]:
        reasons[good.sequence].append("the last good one")
    if best is not None and (winner := best.choose(usable)) is not None:
        reasons[winner.sequence].append(f"best {best.metric}")
    finals: set[int] = set()
    for commit in usable:
        if commit.position == "end" and commit.segment not in finals:
            finals.add(commit.segment)
            reasons[commit.sequence].append(f"end of segment {commit.segment}")
    if keep_first and usable:
        reasons[usable[-1].sequence].append("the first")
    for sequence, reason in (pinned or {}).items():
        if sequence in reasons:
            reasons[sequence].append(reason)
    decisions = tuple(Decision(commit, tuple(reasons[commit.sequence])) for commit in newest_first)
    return RetentionPlan(keep_last, decisions)

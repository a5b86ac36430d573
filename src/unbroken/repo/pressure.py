"""Which checkpoints go so that a full disk takes the next one: a pure plan.

The oldest go, and as few as give the room that is missing. What may go is what would go if one checkpoint alone were kept:
never the newest that can be used, the newest good one, the best, the end of a training, the first where that is kept, what
somebody holds on to, or what is set aside. Where all of that together does not give the room, nothing goes: no
checkpoint is lost in vain.

Not promised: that the room is there afterwards. Others write to the same disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from unbroken.format.records import Commit
from unbroken.repo.retention import Best, Decision, RetentionPlan, plan_retention
from unbroken.types import Sequence

STAYS = "kept as long as there is room"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A save that found no room: how many bytes it takes, and how many are free; None where that cannot be told."""

    needed: int
    free: int | None

    @property
    def is_quota(self) -> bool:
        """Whether it met something else than the end of the disk, of which nothing is known to be left."""
        return self.free is None or self.free >= self.needed

    @property
    def missing(self) -> int:
        """Bytes that have to become free."""
        return self.needed if self.free is None or self.is_quota else self.needed - self.free

    def __str__(self) -> str:
        takes = f"The checkpoint takes {self.needed:,} bytes"
        return takes if self.free is None or self.is_quota else f"{takes} and {self.free:,} are free"


@dataclass(frozen=True, slots=True)
class Relief:
    """What goes, and what that frees; `plan` drops nothing where it would be in vain."""

    plan: RetentionPlan
    missing: int
    """Bytes that the next checkpoint needs beyond what is free."""
    freed: int
    """Bytes that are free afterwards; of a plan that drops nothing, those that could have been."""

    @property
    def is_enough(self) -> bool:
        return self.freed >= self.missing


def plan_relief(
    commits: Iterable[Commit],
    *,
    missing: int,
    freed: Callable[[RetentionPlan], int],
    keep_last: int,
    best: Best | None = None,
    keep_first: bool = False,
    damaged: Collection[Sequence] = (),
    held: Mapping[Sequence, str],
) -> Relief:
    """Plan which of `commits` go so that `missing` bytes become free; `freed` says how many a plan gives.

    What retention under these settings does not keep goes first, all of it, as it would after the save; then the oldest.
    `held` are not touched, for the reasons given. `damaged` are commits known not to load.
    """
    commits = tuple(commits)
    wanted = plan_retention(
        commits, keep_last=keep_last, best=best, keep_first=keep_first, damaged=damaged, pinned=held
    )
    least = plan_retention(
        commits, keep_last=1, best=best, keep_first=keep_first, damaged=damaged, pinned=held
    )
    going = [commit.sequence for commit in wanted.dropped]
    older = sorted(commit.sequence for commit in least.dropped if commit.sequence not in going)
    plans = [_dropping(wanted, {*going, *older[:count]}) for count in range(len(older) + 1)]
    gains: dict[int, int] = {}

    def gain(count: int) -> int:
        if count not in gains:
            gains[count] = freed(plans[count]) if plans[count].dropped else 0
        return gains[count]

    if gain(len(older)) < missing:
        return Relief(_dropping(wanted, ()), missing, gain(len(older)))
    count = bisect_left(range(len(older) + 1), missing, key=gain) if missing > gain(0) else 0
    return Relief(plans[count], missing, gain(count))


def _dropping(wanted: RetentionPlan, gone: Collection[Sequence]) -> RetentionPlan:
    decisions = [
        Decision(one.commit, () if one.commit.sequence in gone else one.reasons or (STAYS,))
        for one in wanted.decisions
    ]
    return RetentionPlan(wanted.keep_last, tuple(decisions))

"""Where a run goes on from: a pure planner over four tiers.

1. *newest*: the newest checkpoint that may be used;
2. *older*: one before it, because the newer ones are damaged;
3. *rebuilt*: environment and sessions made anew from a record, by a `Rebuilder`;
4. *fresh*: from the start, with the reasons kept.

`plan_recovery` takes evidence (the commits, and what is known to be wrong with each) and returns every
step in the order in which it would be tried; nothing is executed, so the plan can be printed. Whoever
executes it adds to the evidence what failed and plans again: one rule decides, the first time and after
every failure.

Not promised: that the chosen checkpoint loads. That is evidence which only reading it can give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from shlex import quote
from typing import Protocol, runtime_checkable

from unbroken.engine.settings import Resume, WorstTier
from unbroken.format.records import Commit
from unbroken.repo.retention import Best
from unbroken.state.snapshot import Snapshot
from unbroken.types import Sequence


class Tier(str, Enum):
    """How far a recovery had to fall."""

    NEWEST = "newest"
    OLDER = "older"
    REBUILT = "rebuilt"
    FRESH = "fresh"

    @property
    def rank(self) -> int:
        return _ORDER.index(self)


_ORDER = (Tier.NEWEST, Tier.OLDER, Tier.REBUILT, Tier.FRESH)


class Rebuilder(Protocol):
    """Makes a state from something else than a checkpoint: recorded rollouts, a journal of calls."""

    name: str

    def available(self) -> str:
        """Return why nothing can be rebuilt, or an empty string."""
        ...

    def rebuild(self) -> tuple[Snapshot, int]:
        """Return the rebuilt state and its step. Touches no live object.

        Raises:
            CorruptObject: the record is damaged; the recovery falls on to the next tier.
        """
        ...


@runtime_checkable
class BuildsOn(Protocol):
    """A rebuilder that takes most of the state from a checkpoint."""

    base: Commit | None
    """That checkpoint, once something was rebuilt."""
    passed_over: tuple[str, ...]
    """What was tried before it, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the plan depends on.

    `unreadable` are commit records that exist and cannot be read, with the reason; `damaged` says of
    commits (by sequence) why they cannot be used, `rejected` why they are not taken although they are whole.
    `rebuild` is why there is nothing to rebuild from, or empty if there is.
    """

    commits: tuple[Commit, ...]
    unreadable: tuple[str, ...] = ()
    damaged: Mapping[Sequence, str] = field(default_factory=dict[Sequence, str])
    rejected: Mapping[Sequence, str] = field(default_factory=dict[Sequence, str])
    rebuild: str = "no rollouts were recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the settings ask for."""

    resume: Resume = "auto"
    worst_tier: WorstTier = "rebuilt"
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One step of a plan. It is tried if `obstacle` is empty."""

    tier: Tier
    commit: Commit | None
    obstacle: str = ""

    def __str__(self) -> str:
        return f"{self.tier.value:8} {_name(self)}" + (f": no, {self.obstacle}" if self.obstacle else "")


_WHAT = {
    Tier.NEWEST: "the newest checkpoint",
    Tier.OLDER: "an older checkpoint",
    Tier.REBUILT: "rebuild from recorded rollouts",
    Tier.FRESH: "start from the beginning",
}


FRESH = 'worst_tier="fresh" (for one start: UNBROKEN_WORST_TIER=fresh) starts at the beginning'


def anew(where: str) -> str:
    """Return what a person can do where nothing of the run can be used any more."""
    verify = f"unbroken verify {quote(where)}" if where else "unbroken verify"
    return (
        f"`{verify}` names each file that is damaged, and a mirror brings them back."
        f" Without one, {FRESH}, and keeps what can be read."
    )


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What would be tried, best first. `str()` of it is a table.

    `stop` says why the run must not go on if no attempt is left, `hint` what a person can do then; `first` is what
    to do now.
    """

    attempts: tuple[Attempt, ...]
    stop: str = ""
    hint: str = ""

    @property
    def first(self) -> Attempt | None:
        """The attempt to make now, or None if the run has to stop."""
        return next((attempt for attempt in self.attempts if not attempt.obstacle), None)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """What stands against each attempt before the first possible one."""
        first = self.first
        before = self.attempts[: self.attempts.index(first)] if first is not None else self.attempts
        return tuple(f"{_name(attempt)}: {attempt.obstacle}" for attempt in before)

    def __str__(self) -> str:
        first, reached = self.first, False
        lines: list[str] = []
        for attempt in self.attempts:
            mark = "->" if attempt is first else ("  " if reached or attempt.obstacle else "->")
            reached = reached or attempt is first
            lines.append(f"{mark} {attempt}")
        if first is None:
            lines.append(f"-> stop: {self.stop}")
        return "\n".join(lines)


def _name(attempt: Attempt) -> str:
    commit = attempt.commit
    return _WHAT[attempt.tier] if commit is None else f"commit {commit.sequence} (step {commit.step:,})"


def plan_recovery(evidence: Evidence, wish: Wish, *, where: str = "") -> RecoveryPlan:
    """Return every step of a recovery in the order in which it is tried. `where` is the run, for people."""
    if wish.resume == "never":
        return RecoveryPlan((Attempt(Tier.FRESH, None),))
    if not evidence.commits and not evidence.unreadable:
        if wish.resume in ("auto", "best"):  # of nothing, nothing is the best
            return RecoveryPlan((Attempt(Tier.FRESH, None),))
        return RecoveryPlan(
            (),
            stop=f"resume={wish.resume!r}, and {where or 'the run'} holds no checkpoint",
            hint="Check the directory and the name of the run; to begin a new run, leave resume out.",
        )
    attempts = [*_checkpoints(evidence, wish)]
    if isinstance(wish.resume, int):
        if not attempts:
            steps = ", ".join(str(step) for step in sorted({c.step for c in evidence.commits}))
            there = (
                f"those that there are have the steps {steps}" if steps else "there is none that can be read"
            )
            return RecoveryPlan(
                (),
                stop=f"no checkpoint has step {wish.resume}; {there}",
                hint="Name one of these steps, or leave it out to go on from the newest checkpoint."
                if steps
                else anew(where),
            )
        # A step that a person has named is not replaced by another one.
        return RecoveryPlan(
            tuple(attempts),
            stop=f"the checkpoint of step {wish.resume} cannot be used",
            hint="Name another step, or leave it out to go on from the newest checkpoint that can be used.",
        )
    worst = Tier(wish.worst_tier)
    limited = [_limit(attempt, worst) for attempt in attempts]
    limited.append(_limit(Attempt(Tier.REBUILT, None, evidence.rebuild), worst))
    limited.append(_limit(Attempt(Tier.FRESH, None), worst))
    stop = f"worst_tier={wish.worst_tier!r} allows nothing that is left"
    return RecoveryPlan(tuple(limited), stop=stop, hint=_way_on(evidence, attempts, where))


def _way_on(evidence: Evidence, attempts: Iterable[Attempt], where: str) -> str:
    """Return what a person can do where nothing is allowed any more, the way that costs least first."""
    tried = [attempt for attempt in attempts if attempt.commit is not None]
    left = next((attempt.commit for attempt in tried if not attempt.obstacle), None)
    if left is not None:
        newest = max(c.step for c in evidence.commits if c.segment == left.segment)
        cost = f", {newest - left.step:,} before the newest" if newest > left.step else ""
        return (
            f'worst_tier="older" (for one start: UNBROKEN_WORST_TIER=older) goes on from step {left.step:,}{cost};'
            " a mirror may bring the newest back."
        )
    if not evidence.rebuild:
        return (
            'worst_tier="rebuilt" (for one start: UNBROKEN_WORST_TIER=rebuilt) makes the environments anew from the'
            " journal."
        )
    whole = next((a.commit for a in tried if a.commit and a.commit.sequence not in evidence.damaged), None)
    if whole is not None:
        less = " A warm-up evaluation can ask less (`least`)." if evidence.rejected else ""
        return (
            f"Whole and not taken: resume={whole.step} (UNBROKEN_RESUME={whole.step}) goes on from there all the"
            f" same.{less} {FRESH}."
        )
    return anew(where)


def _checkpoints(evidence: Evidence, wish: Wish) -> Iterable[Attempt]:
    newest_first = sorted(evidence.commits, key=lambda commit: commit.sequence, reverse=True)
    if wish.resume == "best" and wish.best is not None:
        winner = wish.best.choose(newest_first)
        if winner is not None:
            newest_first = [winner, *(commit for commit in newest_first if commit is not winner)]
    elif isinstance(wish.resume, int):
        newest_first = [commit for commit in newest_first if commit.step == wish.resume]
    # An unreadable record is younger or older than the rest, nobody can tell; it makes the tier worse
    # only if nothing else can be newer, so it is listed and does not count.
    tier = Tier.NEWEST
    for commit in newest_first:
        obstacle = evidence.damaged.get(commit.sequence, "") or evidence.rejected.get(commit.sequence, "")
        if not obstacle and not commit.good and not isinstance(wish.resume, int):
            obstacle = "its weights hold NaN or infinite values; name its step to take it all the same"
        yield Attempt(tier, commit, obstacle)
        if obstacle:
            tier = Tier.OLDER


def _limit(attempt: Attempt, worst: Tier) -> Attempt:
    if attempt.obstacle or attempt.tier.rank <= worst.rank:
        return attempt
    return Attempt(attempt.tier, attempt.commit, f"worst_tier={worst.value!r} forbids it")


def of_segment(commits: Iterable[Commit], segment: int) -> tuple[Commit, ...]:
    """Return the commits that a start of this segment may go on from.

    Segments of one script follow one another, so a commit of a later one is only worth something if
    no earlier segment was trained again after it.
    """
    every = tuple(commits)
    floor = max((commit.sequence for commit in every if commit.segment < segment), default=0)
    return tuple(c for c in every if c.segment == segment and c.sequence > floor)


def wish_of_segment(wish: Wish, commits: Iterable[Commit], segment: int) -> Wish:
    """Return the wish as it concerns one segment: a step that lies in another one says nothing here."""
    every = tuple(commits)
    named = isinstance(wish.resume, int) and any(c.step == wish.resume for c in every)
    mine = any(c.step == wish.resume and c.segment == segment for c in every)
    later = wish.resume in ("must", "best") and segment > 0
    if (named and not mine) or (later and not of_segment(every, segment)):
        return Wish(resume="auto", worst_tier=wish.worst_tier, best=wish.best)
    return wish

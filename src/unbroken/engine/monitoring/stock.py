"""What a run holds, as the store says: its newest checkpoint, its bytes, the starts in its history.

Reads only. The run is being written meanwhile: what is deleted between its listing and a look at it counts
nothing.

Not promised: cheapness. To measure all bytes costs a request an object in a bucket; whoever asks says when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unbroken.engine.recovery import Tier
from unbroken.errors import CorruptObject, ObjectMissing
from unbroken.format.records import HistoryRecord
from unbroken.repo.repository import Repository
from unbroken.repo.usage import sizes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Starts in the history of a run. `tally` counts them by tier and fault; of those that had something to go on
    from, `recovered` did, and `lost` began anew or had to stop."""

    tally: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    recovered: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """One look at a run. Bytes of the newest checkpoint are uncompressed (`size`) and as they were `written`;
    `usage` and `starts` are None where nobody asked."""

    checkpoints: int = 0
    step: int = 0
    time: float = 0.0
    good: bool = True
    size: int = 0
    written: int = 0
    usage: int | None = None
    starts: Starts | None = None


def look(repository: Repository, *, usage: bool, history: bool) -> Stock:
    """Look at a run; at the bytes of all that it holds, and at its history, only where that is asked for.

    Raises:
        StoreError: the store failed.
    """
    used = sum(sizes_of(repository.store).values()) if usage else None
    starts = starts_of(repository.history()) if history else None
    commits = repository.commits()
    for commit in commits[:1]:
        try:
            meta = repository.meta(commit)
        except (CorruptObject, ObjectMissing):  # deleted meanwhile, or damaged, which is told elsewhere
            continue
        return Stock(
            checkpoints=len(commits),
            step=commit.step,
            time=commit.time,
            good=commit.good,
            size=meta.bytes,
            written=sum(cost.written or 0 for cost in meta.cost.values()),
            usage=used,
            starts=starts,
        )
    return Stock(usage=used, starts=starts)


def starts_of(history: Iterable[HistoryRecord]) -> Starts:
    """Return what a history says of starts.

    One that began anew without a reason had nothing to go on from, or was told not to.
    """
    tally: Counter[tuple[str, str]] = Counter()
    recovered = lost = 0
    for record in history:
        if record.event == "start":
            tally[record.tier, record.fault or "none"] += 1
            if record.tier != Tier.FRESH.value:
                recovered += 1
            elif record.reasons:
                lost += 1
        elif record.event == "refused":
            tally["none", "refused"] += 1
            lost += 1
    return Starts(tally=dict(tally), recovered=recovered, lost=lost)

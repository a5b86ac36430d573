"""When the next save is due, from what saves have cost and what they may cost.

Two budgets. `max_loss`: how much work a kill may take along, at worst what was done from one snapshot
until the next one is durable. `max_overhead`: which share of the time may go into saving, which is the
time that training stands still and the time that the writer works beside it and takes cores from it.

With `max_loss`, saves are as rare as it allows, and what they cost is held against `max_overhead`. With
`max_overhead` alone, they are as frequent as it allows, but never more than one in `SHORTEST` seconds.
Every cost is paid for by the time after it, so the share holds whether saves get dearer or cheaper.

What the next save will cost is taken to be the second dearest of the last five, so that one outlier
changes nothing; until three are known it is the dearest. It may become dearer by a fourth before
`max_loss` is missed. A loop that is not clean for a while (the update of a rollout, an evaluation) is saved
early enough for the longest such stretch that was met since the save before the last.

From one half of the time that `max_loss` leaves on, and once the cost of the last save is paid for, a save may
come early, at a moment that is better than others. Later than that it never comes for such a reason.

Not promised: the loss in a stretch that is longer than any of late; nor the share of a single save, since an
outlier is paid back over several.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from threading import Lock

from unbroken.engine.duration import percent, told

RECENT = 5
ENOUGH = 3
"""Measured saves until an outlier can be told from the rest."""

HEADROOM = 1.25
SHORTEST = 10.0
"""Seconds between two saves that are made only because `max_overhead` allows them."""

UNMEASURED_SHARE = 0.1
"""Of `max_loss`: how long a save is taken to last before one has been measured."""

EARLIEST = 0.5
"""Share of the time between two saves after which one may come early."""

LOOK = 1.0
"""Seconds between two looks for a moment that is better than others, which may cost a question to each worker."""

UNMEASURED_COST = 1.0
"""Seconds that a save is taken to cost before one has been measured."""


class BudgetWarning(UserWarning):
    """Saves take so long that `max_loss`, or `max_overhead` beside it, cannot hold."""


class Budget:
    """The measured costs of one process, and when they make the next save due.

    `written` and `copied` may be called from another thread than the rest.
    """

    __slots__ = (
        "_asked",
        "_blocked",
        "_busy",
        "_cut",
        "_due_at",
        "_durable",
        "_early_at",
        "_lock",
        "_longest",
        "_max_loss",
        "_max_overhead",
        "_paid_until",
        "_stretch",
        "_told_loss",
        "_told_share",
        "reason",
    )

    def __init__(self, *, max_loss: float | None, max_overhead: float | None) -> None:
        self._max_loss = max_loss
        self._max_overhead = max_overhead
        self._lock = Lock()
        self._blocked = deque[float](maxlen=RECENT)
        self._durable = deque[float](maxlen=RECENT)
        self._busy = deque[float](maxlen=RECENT)
        self._cut = self._asked = -math.inf
        self._stretch = self._longest = 0.0
        """The longest time from one clean point to the next: since the last save; since the one before."""
        self._paid_until = -math.inf
        self._told_loss = self._told_share = 0.0
        self._due_at = self._early_at = math.inf
        self.reason = ""
        """Why it is due then."""
        if max_loss is not None:
            self.reason = f"{told(max_loss)} of work at risk"
        elif max_overhead is not None:
            self.reason = f"saving may take {percent(max_overhead)} of the time"

    def begin(self, now: float) -> None:
        """Count from here, where nothing was saved and nothing is at risk. What was measured stays."""
        with self._lock:
            self._cut = self._asked = now
            self._plan()

    def is_due(self, now: float) -> bool:
        """Return whether to save at this clean point, the last of which was when this was asked before."""
        if self._max_loss is None:
            return now >= self._due_at
        stretch = now - self._asked
        self._asked = now
        if stretch > self._stretch:
            self._stretch = stretch
            self._longest = max(self._longest, stretch)
        # The next clean point may be as far away as any of late, and be too late.
        return now + self._longest >= self._due_at

    def is_early(self, now: float) -> bool:
        """Return whether a save may be made although none is due; not again before `LOOK` is over."""
        if now < self._early_at or now < self._paid_until:
            return False
        self._early_at = now + LOOK
        return True

    def copied(self, now: float, blocked: float) -> None:
        """Count from here: the state has been copied, and training stood still for it for so long."""
        with self._lock:
            self._blocked.append(blocked)
            self._pay(now, blocked)
            self._cut = self._asked = now
            self._longest, self._stretch = self._stretch, 0.0
            self._plan()

    def written(self, now: float, *, durable: float, busy: float) -> None:
        """Learn that the writer has finished: after so long the copy was durable, in all it took `busy`."""
        with self._lock:
            self._durable.append(durable)
            self._busy.append(busy)
            # From where the write began: the outcome is the same whichever thread comes first.
            self._pay(now - busy, busy)
            # Whoever waited for the writer was not training.
            self._asked = max(self._asked, now)
            self._plan()

    def conflict(self) -> str:
        """Return which budget cannot hold, in one sentence and the next step; else an empty string.

        Says it once, and again only when it has become twice as bad.
        """
        with self._lock:
            if self._max_loss is None or len(self._durable) < ENOUGH or not self._blocked:
                return ""
            max_loss = self._max_loss
            # One save at a time: the next snapshot waits until the writer is free.
            at_risk = _expected(self._busy) + _expected(self._durable)
            if at_risk > max_loss:
                return self._loss_missed(max_loss, at_risk)
            return self._share_missed(max_loss)

    def _pay(self, since: float, cost: float) -> None:
        if self._max_overhead is not None:
            self._paid_until = max(self._paid_until, since) + cost / self._max_overhead

    def _plan(self) -> None:
        if self._max_loss is not None:
            rarest = self._rarest(self._max_loss)
            self._due_at, self._early_at = self._cut + rarest, self._cut + EARLIEST * rarest
        elif self._max_overhead is not None:
            self._due_at = self._cut + self._densest(self._max_overhead)

    def _rarest(self, max_loss: float) -> float:
        if not self._durable:
            return max_loss * (1 - UNMEASURED_SHARE)
        return max_loss - HEADROOM * _expected(self._durable)

    def _densest(self, max_overhead: float) -> float:
        if not self._busy:
            return max(SHORTEST, UNMEASURED_COST / max_overhead)
        # An outlier is paid back over several saves; it must not leave training unsaved for hours.
        longest = 2 * (_expected(self._blocked) + _expected(self._busy)) / max_overhead
        return max(SHORTEST, min(self._paid_until - self._cut, longest))

    def _loss_missed(self, max_loss: float, at_risk: float) -> str:
        if at_risk < 2 * self._told_loss:
            return ""
        self._told_loss = at_risk
        durable = told(_expected(self._durable))
        return (
            f"A loss of at most {told(max_loss)} cannot be held: a save takes {durable} until it is durable,"
            f" and the next begins only after it, so up to {told(at_risk)} of work are at risk."
            " Saves follow each other without a pause."
            f" Give max_loss={_above(at_risk)}, or a root that is written faster."
        )

    def _share_missed(self, max_loss: float) -> str:
        blocked, busy = _expected(self._blocked), _expected(self._busy)
        pause = max(self._rarest(max_loss) - self._longest, busy)
        share = (blocked + busy) / (blocked + pause)
        limit = self._max_overhead
        if limit is None or share <= limit or share < 2 * self._told_share:
            return ""
        self._told_share = share
        other = math.ceil(share * 1000) / 1000
        enough = (blocked + busy) / limit - blocked + HEADROOM * _expected(self._durable) + self._longest
        return (
            f"A loss of at most {told(max_loss)} and {percent(limit)} of the time for saving cannot both be held:"
            f" training stands still for {told(blocked)} and the writer works for {told(busy)} every"
            f" {told(blocked + pause)}, which is {percent(share)} of the time. The bound on the loss is kept."
            f" Give max_loss={_above(enough)}" + (f", or max_overhead={other:g}." if other < 1 else ".")
        )


def _expected(costs: Iterable[float]) -> float:
    ordered = sorted(costs)
    if not ordered:
        return 0.0
    return ordered[-1] if len(ordered) < ENOUGH else ordered[-2]


def _above(seconds: float) -> str:
    """Return the next longer round setting, as it is written in a script."""
    if seconds <= 60:
        return f'"{math.ceil(seconds)}s"'
    return f'"{math.ceil(seconds / 60)}min"'

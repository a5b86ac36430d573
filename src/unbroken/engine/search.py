"""The search for where a run goes on: plan, look, and plan again with what was found.

One loop for who restores and for who only wants to know (`unbroken doctor`): they differ in how they look at an attempt,
and in what asking the mirror does.

Not promised: anything about an attempt that was not made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from unbroken.engine.recovery import Attempt, Evidence, RecoveryPlan, Wish, plan_recovery
from unbroken.errors import CorruptObject, ObjectMissing, Rejected, UnbrokenError
from unbroken.types import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought(Generic[T]):
    """What a search came to. Without an attempt that could be made `result` is None, and the plan says why."""

    plan: RecoveryPlan
    evidence: Evidence
    result: T | None = None


def search(
    evidence: Evidence,
    wish: Wish,
    *,
    where: str,
    look: Callable[[Attempt], T],
    ask: Callable[[Attempt | None, Evidence], Evidence | None],
) -> Sought[T]:
    """Make one attempt after the other until one succeeds.

    `look` makes an attempt, and raises CorruptObject, ObjectMissing or Rejected where the next may be made. `ask` is told of
    the attempt before it is made; where something else may know better it returns evidence with what that has added.
    """
    while True:
        plan = plan_recovery(evidence, wish, where=where)
        attempt = plan.first
        more = ask(attempt, evidence)
        if more is not None:
            evidence = more
            continue
        if attempt is None:
            return Sought(plan=plan, evidence=evidence)
        try:
            return Sought(plan=plan, evidence=evidence, result=look(attempt))
        except (CorruptObject, ObjectMissing, Rejected) as error:
            evidence = _with_failure(evidence, attempt, error)


def _with_failure(evidence: Evidence, attempt: Attempt, error: UnbrokenError) -> Evidence:
    if attempt.commit is None:
        return replace(evidence, rebuild=error.message)
    sequence: Sequence = attempt.commit.sequence
    if isinstance(error, Rejected):
        return replace(evidence, rejected={**evidence.rejected, sequence: error.message})
    return replace(evidence, damaged={**evidence.damaged, sequence: error.message})

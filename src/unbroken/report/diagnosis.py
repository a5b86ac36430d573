"""What the next start of a run would do, as a person reads it."""

from __future__ import annotations

from unbroken.engine.diagnosis import Diagnosis
from unbroken.engine.faults import FaultKind
from unbroken.engine.recovery import Attempt, RecoveryPlan, Tier
from unbroken.report.ending import ended
from unbroken.report.position import where
from unbroken.report.quantity import moment, number
from unbroken.report.table import Cell, Column, Table

_WHAT = {"rebuilt": "rebuild the environments from what was recorded", "fresh": "start from the beginning"}


def diagnosis_parts(found: Diagnosis) -> list[Table | str]:
    """Return what a person reads: the outcome, the end of the last process, the plan, and what was looked at."""
    parts: list[Table | str] = [f"{found.where}: {found.outcome}", f"last process: {_ended(found)}"]
    parts += found.says
    if found.steps_lost:
        parts.append(f"steps lost: {'at least ' if found.lost_at_least else ''}{number(found.steps_lost)}")
    if found.segment:
        parts.append(f"training {found.segment + 1} of its script; those before it are finished")
    plan = Table(
        (Column(""), Column("tier"), Column("what"), Column("saved"), Column("what stands against it"))
    )
    reached = False
    for attempt in found.plan.attempts:
        first = attempt is found.plan.first
        mark = "->" if first else ""
        if attempt.obstacle:
            against = Cell(attempt.obstacle, "bad")
        elif _is_abandoned(found, attempt):
            against = Cell("abandoned: a later start went back before it", "quiet")
        else:
            against = Cell("nothing: it is not needed" if reached else "nothing", "quiet")
        plan.add(mark, _tier(found, attempt, after=reached), *_named(found, attempt), against)
        reached = reached or first
    findings = Table((Column("looked at"), Column("found")))
    for one in found.findings:
        findings.add(one.subject, one.found if one.ok else Cell(one.found, "bad"))
    parts += ["", plan] if plan.rows else []
    parts += ["", findings] if findings.rows else []
    return parts


def diagnosis_data(found: Diagnosis) -> dict[str, object]:
    """Return the same for a machine."""
    return {
        "run": found.where,
        "goes_on": found.goes_on,
        "outcome": found.outcome.sentence,
        "verdict": found.outcome.verdict.value,
        "step": found.outcome.step,
        "fault": {"kind": found.fault.kind.value, "detail": found.fault.detail},
        "steps_lost": found.steps_lost,
        "steps_lost_at_least": found.lost_at_least,
        "segment": found.segment,
        "plan": [
            {
                "tier": _tier_of(found.plan, attempt).value,
                "step": None if attempt.commit is None else attempt.commit.step,
                "sequence": None if attempt.commit is None else attempt.commit.sequence,
                "obstacle": attempt.obstacle,
                "first": attempt is found.plan.first,
                "from_mirror": attempt.commit is not None and attempt.commit.sequence in found.lent,
                "abandoned": _is_abandoned(found, attempt),
            }
            for attempt in found.plan.attempts
        ],
        "stop": found.plan.stop if found.plan.first is None else "",
        "findings": [
            {"subject": one.subject, "found": one.found, "ok": one.ok, "stops": one.stops}
            for one in found.findings
        ],
    }


def _ended(found: Diagnosis) -> str:
    fault = found.fault
    if fault.kind is FaultKind.NONE:
        return fault.detail or "there was none"
    if fault.detail and (fault.is_alive or fault.kind is FaultKind.CLEAN):
        return fault.detail  # which says it all
    if not fault.detail:
        return ended(fault.kind.value)
    return f"{ended(fault.kind.value)}: {fault.detail}"


def _tier(found: Diagnosis, attempt: Attempt, *, after: bool) -> str:
    return "abandoned" if after and _is_abandoned(found, attempt) else _tier_of(found.plan, attempt).value


def _tier_of(plan: RecoveryPlan, attempt: Attempt) -> Tier:
    """Return the tier of an attempt, if it were made: a checkpoint behind the first that can be used is an older one."""
    first = plan.first
    behind = (
        first is not None
        and attempt.commit is not None
        and plan.attempts.index(attempt) > plan.attempts.index(first)
    )
    return Tier.OLDER if behind else attempt.tier


def _is_abandoned(found: Diagnosis, attempt: Attempt) -> bool:
    return attempt.commit is not None and attempt.commit.sequence in found.abandoned


def _named(found: Diagnosis, attempt: Attempt) -> tuple[str, str]:
    commit = attempt.commit
    if commit is None:
        return _WHAT[attempt.tier.value], ""
    mirrored = ", from the mirror" if commit.sequence in found.lent else ""
    return (
        f"step {number(commit.step)}, {where(commit.position, commit.segment)}{mirrored}",
        moment(commit.time),
    )

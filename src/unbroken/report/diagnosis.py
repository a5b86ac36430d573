"""What the next start of a run would do, as a person reads it."""

from __future__ import annotations

from unbroken.engine.diagnosis import Diagnosis
from unbroken.engine.recovery import Attempt
from unbroken.report.position import where
from unbroken.report.quantity import moment, number
from unbroken.report.table import Cell, Column, Table

_WHAT = {"rebuilt": "rebuild the environments from what was recorded", "fresh": "start from the beginning"}


def diagnosis_parts(found: Diagnosis) -> list[Table | str]:
    """Return what a person reads: the outcome, the end of the last process, the plan, and what was looked at."""
    parts: list[Table | str] = [f"{found.where}: {found.outcome}", f"last process: {found.fault}"]
    parts += found.says
    if found.steps_lost:
        parts.append(f"steps to do again: at least {number(found.steps_lost)}")
    if found.segment:
        parts.append(f"training {found.segment + 1} of its script; those before it are finished")
    plan = Table((Column(""), Column("tier"), Column("what"), Column("saved"), Column("obstacle")))
    reached = False
    for attempt in found.plan.attempts:
        first = attempt is found.plan.first
        mark = "->" if first else ""
        if attempt.obstacle:
            against = Cell(attempt.obstacle, "bad")
        elif _is_abandoned(found, attempt):
            against = Cell("abandoned: a later start went back before it", "quiet")
        else:
            against = Cell("later" if reached else "", "quiet")
        tier = "abandoned" if _is_abandoned(found, attempt) and not first else attempt.tier.value
        plan.add(mark, tier, *_named(found, attempt), against)
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
        "segment": found.segment,
        "plan": [
            {
                "tier": attempt.tier.value,
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

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
    if found.steps_lost:
        parts.append(f"steps to do again: at least {number(found.steps_lost)}")
    if found.segment:
        parts.append(f"training {found.segment + 1} of its script; those before it are finished")
    plan = Table((Column(""), Column("tier"), Column("what"), Column("saved"), Column("obstacle")))
    reached = False
    for attempt in found.plan.attempts:
        first = attempt is found.plan.first
        mark = "->" if first else ""
        obstacle = (
            Cell(attempt.obstacle, "bad") if attempt.obstacle else Cell("later" if reached else "", "quiet")
        )
        plan.add(mark, attempt.tier.value, *_named(attempt), obstacle)
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
        "outcome": found.outcome,
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
            }
            for attempt in found.plan.attempts
        ],
        "stop": found.plan.stop if found.plan.first is None else "",
        "findings": [
            {"subject": one.subject, "found": one.found, "ok": one.ok, "stops": one.stops}
            for one in found.findings
        ],
    }


def _named(attempt: Attempt) -> tuple[str, str]:
    commit = attempt.commit
    if commit is None:
        return _WHAT[attempt.tier.value], ""
    return f"step {number(commit.step)}, {where(commit.position, commit.segment)}", moment(commit.time)

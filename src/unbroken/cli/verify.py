"""`unbroken verify`: read every object of a run and check it against its digest."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.inspection.target import run_of
from unbroken.inspection.verification import Verification, verified
from unbroken.report.quantity import number
from unbroken.report.table import Cell, Column, Table


def verify(
    run: Annotated[str, typer.Argument(help="A run, RUN@STEP, or a step's directory.")],
    step: Annotated[int | None, typer.Option(help="Only this step; default: all checkpoints.")] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Check every object of a run against its digest. Exit status 1 if one is damaged.

    The run may be in training: what it deletes meanwhile is passed over.
    """
    target = run_of(run, step=step)
    result = verified(target)
    show(*tables(result), data=result, json=json)
    return EXIT_OK if result.intact else EXIT_NO


def tables(result: Verification) -> list[Table | str]:
    """Return what a person reads."""
    overview = Table((Column("step", numeric=True), Column("checkpoint"), Column("result")))
    faults = Table((Column("step", numeric=True), Column("component"), Column("object"), Column("problem")))
    for commit in result.checkpoints:
        verdict = Cell(f"{len(commit.faults)} bad", "bad") if commit.faults else Cell("intact", "good")
        overview.add(number(commit.step), commit.directory, verdict)
        for fault in commit.faults:
            faults.add(number(commit.step), fault.component, fault.key or fault.digest, fault.problem)
    for fault in result.broken:
        faults.add("", "", fault.key, fault.problem)
    told: list[Table | str] = [overview]
    if faults.rows:
        told += ["", faults]
    if result.passed_over:
        steps = ", ".join(map(number, result.passed_over))
        told += ["", f"Passed over, since the run deleted it meanwhile: step {steps}"]
    return told

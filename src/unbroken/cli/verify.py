"""`unbroken verify`: read every object of a run and check it against its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.target import Target, run_of
from unbroken.errors import ConfigError
from unbroken.repo.fault import ObjectFault
from unbroken.report.quantity import number
from unbroken.report.table import Cell, Column, Table


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """One checkpoint and what is wrong with it."""

    step: int
    sequence: int
    directory: str
    faults: tuple[ObjectFault, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """A run and its checkpoints, newest first. `passed_over`: the steps of those that the run, which is in
    training, deleted before they were read. `broken`: records and indexes of the run that cannot be read."""

    run: str
    intact: bool
    checkpoints: tuple[CheckedCommit, ...]
    passed_over: tuple[int, ...] = ()
    broken: tuple[ObjectFault, ...] = ()


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


def verified(target: Target) -> Verification:
    """Check the named checkpoint, or all of them.

    Raises:
        ConfigError: there is none.
    """
    commits = [target.commit] if target.commit else target.repository.commits()
    broken = () if target.commit else tuple(target.repository.broken())
    if not commits and not broken:
        raise ConfigError(f"{target.where} holds no checkpoint.", hint="There is nothing to verify yet.")
    checked: list[CheckedCommit] = []
    passed_over: list[int] = []
    for c in commits:
        faults = tuple(target.repository.verify(c))
        if faults and target.repository.gone(c):
            passed_over.append(c.step)
        else:
            checked.append(CheckedCommit(c.step, c.sequence, c.directory, faults))
    intact = not broken and not any(c.faults for c in checked)
    return Verification(target.where, intact, tuple(checked), tuple(passed_over), broken)


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

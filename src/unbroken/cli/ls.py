"""`unbroken ls`: the runs under a root and their checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.inspection.listing import Listed, list_runs
from unbroken.inspection.target import default_root
from unbroken.report.position import where
from unbroken.report.quantity import moment, number
from unbroken.report.table import Cell, Column, Table

COLUMNS = (
    Column("run"),
    Column("step", numeric=True),
    Column("taken"),
    Column("saved"),
    Column("state"),
    Column("metrics"),
)
ABANDONED = "abandoned: a later start went back before it"
ASIDE = "set aside: a start began anew; kept until you prune it"
SAVED_AGAIN = "saved again at this step by a later start"


def ls(
    root: Annotated[
        str,
        typer.Argument(help="A root with runs, or one run. Default: UNBROKEN_ROOT, unbroken.yaml, or here."),
    ] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """List runs and their checkpoints, the latest written first.

    `taken`: at the start of a training, in it, or at its end; a number in brackets counts the trainings of
    a script that has several. `state`: damage to documents is seen here, damage to arrays by `verify`; of a good one, which
    components are not exact.
    """
    listing = list_runs(root or default_root())
    table = Table(COLUMNS)
    for run in listing.runs:
        if run.problem or not (run.checkpoints or run.unreadable):
            word = Cell(run.problem, "bad") if run.problem else Cell("none yet", "quiet")
            table.add(run.run, "", "", "", word, "")
        for listed in run.checkpoints:
            table.add(run.run, *cells(listed))
        for problem in run.unreadable:
            table.add(run.run, "", "", "", Cell(f"damaged: {problem}", "bad"), "")
    show(table, data=listing, json=json)
    return EXIT_OK


def cells(listed: Listed) -> tuple[str | Cell, ...]:
    """Return what a table says of one checkpoint."""
    commit = listed.commit
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(commit.metrics.items()))
    if listed.problem:
        state = Cell(f"{listed.problem}{f'; {ASIDE}' if listed.aside else ''}", "bad")
    else:
        good = f"good; {'; '.join(_told(listed))}" if listed.fidelity else "good"
        word = (
            ASIDE
            if listed.aside
            else ABANDONED
            if listed.abandoned
            else SAVED_AGAIN
            if listed.saved_again
            else good
        )
        state = Cell(word, "quiet")
    taken = where(commit.position, commit.segment)
    return number(commit.step), taken, moment(commit.time), state, metrics


def _told(listed: Listed) -> list[str]:
    """Return which components are not exact, by what they are; all of them are one word."""
    told: list[str] = []
    for word in sorted(set(listed.fidelity.values())):
        names = [name for name, kept in listed.fidelity.items() if kept == word]
        told.append(f"{word}: {', '.join(names) if len(names) < listed.components else 'all parts'}")
    return told

"""`unbroken diff`: compare two checkpoints leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.format.records import Commit
from unbroken.inspection.difference import difference
from unbroken.inspection.target import run_of
from unbroken.report.comparison import (
    ComponentComparison,
    classes_told,
    comparison_table,
    off_by,
    plain,
    promises_told,
)
from unbroken.report.position import where
from unbroken.report.quantity import number
from unbroken.report.table import Column, Table

CHECKPOINT = "A run (its newest checkpoint), RUN@STEP, or a step's directory."


@dataclass(frozen=True, slots=True)
class DiffResult:
    """What a machine reads."""

    a: str
    b: str
    equal: bool
    components: tuple[ComponentComparison, ...]


def diff(
    a: Annotated[str, typer.Argument(help=CHECKPOINT)],
    b: Annotated[str, typer.Argument(help=CHECKPOINT)],
    every_leaf: Annotated[bool, typer.Option("--all", help="List every differing leaf.")] = False,
    wall_clock: Annotated[bool, typer.Option("--wall-clock", help="Compare wall-clock times too.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Compare two checkpoints. Exit status 1 if they differ."""
    between = difference(run_of(a), run_of(b), wall_clock=wall_clock)
    components, found = between.components, between.leaves
    result = DiffResult(between.a, between.b, not found, components)
    parts: list[Table | str] = [
        f"A: {named(between.before, between.a)}",
        f"B: {named(between.after, between.b)}",
        *classes_told(components),
        "",
        comparison_table(components),
        *promises_told(components),
    ]
    if every_leaf and found:
        leaves = Table((Column("component"), Column("place"), Column("A"), Column("B"), Column("off by")))
        for leaf in found:
            far = "" if leaf.distance is None else off_by(leaf)
            leaves.add(leaf.component, leaf.place, plain(leaf.before), plain(leaf.after), far)
        parts += ["", leaves]
    show(*parts, data=result, json=json)
    return EXIT_OK if result.equal else EXIT_NO


def named(commit: Commit, place: str) -> str:
    return f"step {number(commit.step)}, {where(commit.position, commit.segment)}, {place}"

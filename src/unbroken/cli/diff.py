"""`unbroken diff`: compare two checkpoints leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.capture.volatile import without_clocks
from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.target import run_of
from unbroken.report.comparison import ComponentComparison, by_component, comparison_table
from unbroken.report.table import Column, Table
from unbroken.state.diff import compare

CHECKPOINT = "A run (its newest checkpoint), RUN@STEP, or a step's directory."


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Two checkpoints and what differs between them."""

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
    left, right = run_of(a), run_of(b)
    before, after = left.checkpoint(), right.checkpoint()
    one, other = left.repository.load(before), right.repository.load(after)
    found = compare(one, other)
    if not wall_clock:
        found = without_clocks(found, one, other)
    components = by_component(sorted({*one.components, *other.components}), found)
    result = DiffResult(
        str(left.path / before.directory), str(right.path / after.directory), not found, components
    )
    parts: list[Table | str] = [comparison_table(components)]
    if every_leaf and found:
        leaves = Table(
            (Column("component"), Column("place"), Column("before"), Column("after"), Column("off by"))
        )
        for leaf in found:
            far = "" if leaf.distance is None else f"{leaf.distance:.3g}"
            leaves.add(leaf.component, leaf.place, leaf.before, leaf.after, far)
        parts += ["", leaves]
    show(*parts, data=result, json=json)
    return EXIT_OK if result.equal else EXIT_NO

"""`unbroken prune`: delete checkpoints that are not wanted any more, and everything that is dead."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.inspection.pruned import Pruned, carried_out, planned
from unbroken.inspection.target import open_run, run_named
from unbroken.repo.pruning import check_idle, plan_prune
from unbroken.repo.usage import sizes_of
from unbroken.report.pruning import plan_tables
from unbroken.report.quantity import counted, size
from unbroken.report.table import Table


def prune(
    root: Annotated[str, typer.Argument(help="A run, or a root that holds it.")],
    job: Annotated[str, typer.Option("--job", help="The run, where the root holds several.")] = "",
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            help="Checkpoints to keep, the newest; also the last good one and the ends of trainings. "
            "Default: all.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The process that held the run elsewhere is gone for good.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Delete what no checkpoint needs, and rewrite packs that are partly dead.

    Exit status 1 if something had to stay: a damaged blob, or no room to rewrite a pack.
    """
    run = run_named(root, job)
    repository = open_run(run)
    store = repository.store
    plan = plan_prune(store, keep_last=keep_last)
    there = sizes_of(store)

    def size_of(key: str) -> int:
        return there.get(key, 0)  # a run in training deletes what was planned, too

    tables = plan_tables(plan, size_of, run=run)
    if dry_run:
        busy = f"The run is in use by {plan.busy}: prune refuses until it has ended." if plan.busy else ""
        show(*tables, *(["", busy] if busy else []), data=planned(run, plan, size_of), json=json)
        return EXIT_OK
    if not take_over:
        check_idle(store, repository.job, otherwise="add --take-over")
    result = carried_out(run, repository, keep_last=keep_last)
    show(*tables, "", *_told(result), data=result, json=json)
    return EXIT_NO if result.damaged or result.missing_room else EXIT_OK


def _told(result: Pruned) -> list[Table | str]:
    lines: list[Table | str] = [f"{size(max(0, result.freed))} freed."]
    if result.damaged:
        named = counted(len(result.damaged), "damaged blob")
        lines.append(f"Packs with {named} were left alone: {'; '.join(map(str, result.damaged))}")
    if result.missing_room:
        lines.append(
            f"Packs that are partly dead stay: to rewrite the next, {size(result.missing_room)} must be free first."
        )
    return lines

"""`unbroken history`: every start and every end of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.inspection.target import run_of
from unbroken.report.history import history_data, history_table


def history(
    run: Annotated[str, typer.Argument(help="A run, or a root that holds one.")],
    last: Annotated[int | None, typer.Option(min=1, help="Only so many of the newest lines.")] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """List the starts and ends of a run, oldest first: when, how the process before had ended, from which tier and
    step it went on, how many steps were lost with it, how long the recovery took, and why checkpoints were passed over.

    How far a process had come is known where it ended in order. Of a killed one only its saves are: `at least` counts up
    to the last that was begun, and without one its lost steps are not known. `refused` is a start that has stopped before it trained. Of many or long
    reasons the beginning is shown; --json has all.
    """
    target = run_of(run)
    records = target.repository.history()
    records = records if last is None else records[-last:]
    show(history_table(records), data={"run": target.where, "history": history_data(records)}, json=json)
    return EXIT_OK

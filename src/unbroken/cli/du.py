"""`unbroken du`: what each checkpoint and each component costs on the disk."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.inspection.target import default_root, open_run, runs_in
from unbroken.repo.usage import measure
from unbroken.report.usage import as_data, usage_tables


def du(
    root: Annotated[
        str,
        typer.Argument(help="A root with runs, or one run. Default: UNBROKEN_ROOT, unbroken.yaml, or here."),
    ] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Show what checkpoints and components cost: `alone` is freed if it goes, `shared` is needed by others, too.

    Nothing is changed, and a training that writes to the run is not disturbed.
    """
    text = root or default_root()
    runs = runs_in(text)
    if not runs:
        raise ConfigError(f"{text} holds no runs.", hint="Name the root that the training writes to.")
    costs = {run: measure(open_run(run).store) for run in runs}
    tables = [part for run, cost in costs.items() for part in (*usage_tables(run, cost), "")]
    show(*tables[:-1], data={"runs": [as_data(run, cost) for run, cost in costs.items()]}, json=json)
    return EXIT_OK

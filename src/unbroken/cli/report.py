"""`unbroken report`: a run to look at, as one HTML file."""

from __future__ import annotations

import re
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from unbroken.cli import destination
from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.inspection.target import run_of
from unbroken.report.quantity import size


def report(
    run: Annotated[str, typer.Argument(help="A run, a root that holds one, or RUN@STEP.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; - is the standard output. Default: NAME-report.html, here.",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Write one HTML file that shows a run: reward and loss with every interruption, its checkpoints with what each
    takes on the disk, what is inside of one, and what saving has cost.

    The file holds all that it shows: it can be sent, opened without a network, and printed. Nothing of the run is
    changed, and a training that works on it is not disturbed. RUN@STEP says which checkpoint is shown from inside.
    Needs two libraries more: pip install plotly jinja2
    """
    from unbroken.ui.report.page import report as page  # what a page needs, other commands do without

    target = run_of(run)
    path = Path(output or f"{re.sub(r'[^A-Za-z0-9._-]', '-', target.repository.job)}-report.html")
    if str(path) == destination.OUTPUT and (json or open_):
        raise ConfigError(
            "The report itself goes to the standard output.",
            hint="Leave --json and --open out, or name a file.",
        )
    destination.check(path, force=force)
    data = page(target, now=time.time()).encode("utf-8", "backslashreplace")
    destination.put(path, data)
    if str(path) == destination.OUTPUT:
        return EXIT_OK
    if open_:
        webbrowser.open(path.resolve().as_uri())
    show(
        f"{path}: {size(len(data))}, the report of {target.where}. Open it with any browser.",
        data={"file": str(path), "bytes": len(data), "run": target.where},
        json=json,
    )
    return EXIT_OK

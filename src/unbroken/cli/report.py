"""`unbroken report`: a run to look at, as one HTML file."""

from __future__ import annotations

import os
import re
import secrets
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.inspection.target import run_of
from unbroken.report.quantity import size


def report(
    run: Annotated[str, typer.Argument(help="A run, a root that holds one, or RUN@STEP.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write. Default: NAME-report.html, here.")
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
    Needs the extra: pip install 'unbroken[report]'
    """
    from unbroken.ui.report.page import report as page  # what a page needs, other commands do without

    target = run_of(run)
    path = Path(output or f"{re.sub(r'[^A-Za-z0-9._-]', '-', target.repository.job)}-report.html")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory.", hint=f"Name a file: -o {path / 'report.html'}")
    if not path.parent.is_dir():
        raise ConfigError(
            f"There is no directory {path.parent}.", hint="Make it, or name another file with -o."
        )
    if path.exists() and not force:
        raise ConfigError(f"{path} exists.", hint="Add --force to replace it, or name another file with -o.")
    data = page(target, now=time.time()).encode("utf-8", "backslashreplace")
    write(path, data)
    if open_:
        webbrowser.open(path.resolve().as_uri())
    show(
        f"{path}: {size(len(data))}, the report of {target.where}. Open it with any browser.",
        data={"file": str(path), "bytes": len(data), "run": target.where},
        json=json,
    )
    return EXIT_OK


def write(path: Path, data: bytes) -> None:
    """Write beside `path` and rename, so that an interrupted command leaves no half file."""
    beside = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)

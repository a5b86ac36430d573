"""The commands, gathered."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from unbroken.cli import (
    config,
    copy,
    demo,
    diff,
    doctor,
    du,
    export,
    gym,
    history,
    key,
    ls,
    prove,
    prune,
    report,
    show,
    ui,
    verify,
    version,
)
from unbroken.cli.guard import EXIT_PIPE, guarded

app = typer.Typer(
    name="unbroken",
    help="Exact, incremental checkpoints for reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ls")(guarded(ls.ls))
app.command("show")(guarded(show.show))
app.command("verify")(guarded(verify.verify))
app.command("doctor")(guarded(doctor.doctor))
app.command("history")(guarded(history.history))
app.command("diff")(guarded(diff.diff))
app.command("du")(guarded(du.du))
app.command("report")(guarded(report.report))
app.command("ui")(guarded(ui.ui))
app.command("prune")(guarded(prune.prune))
app.command("copy")(guarded(copy.copy))
app.command("export")(guarded(export.export))
app.command("config")(guarded(config.config))
app.command("prove", context_settings={"allow_interspersed_args": False})(guarded(prove.prove))
app.command("demo")(guarded(demo.demo))
app.add_typer(gym.app, name="gym")
app.add_typer(key.app, name="key")


def print_version(value: bool) -> None:
    """Print the versions that are installed and exit, if asked."""
    if value:
        print(version.words())
        raise typer.Exit


@app.callback()
def unbroken(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=print_version,
            is_eager=True,
            help="Show the versions of Unbroken, of Python and of the libraries beside it.",
        ),
    ] = False,
) -> None:
    """Exact, incremental checkpoints for reinforcement learning."""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code; never raises, except for a caller's own interrupts."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="unbroken")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 2
    else:
        code = 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    return code

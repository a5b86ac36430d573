"""From what a command raises to what a person sees: one sentence, a next step, an exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

from unbroken.cli.output import write_error
from unbroken.errors import InternalError, UnbrokenError

P = ParamSpec("P")

EXIT_OK = 0
EXIT_NO = 1
EXIT_FAILED = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Return `command` for typer: its result is the exit code, its errors are told and never escape.

    Reads the options `debug` and `json` of those commands that have them.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except BrokenPipeError:
            # The reader (`head`, `less`) has what it wanted: not an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_PIPE
        except KeyboardInterrupt:
            write_error("interrupted.", json=bool(kwargs.get("json")), kind="Interrupted")
            code = EXIT_INTERRUPTED
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:  # noqa: BLE001 - the last place where an error can become a sentence
            if kwargs.get("debug"):
                traceback.print_exc()
            code = tell(error, json=bool(kwargs.get("json")))
        raise typer.Exit(code)

    return run


def tell(error: Exception, *, json: bool) -> int:
    """Tell an error and return the exit code that goes with it."""
    if isinstance(error, UnbrokenError) and not isinstance(error, InternalError):
        write_error(str(error), json=json, kind=type(error).__name__)
        return EXIT_FAILED
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        write_error(f"{place}{error.strerror or error}.", json=json, kind=type(error).__name__)
        return EXIT_FAILED
    write_error(
        f"a bug in Unbroken: {type(error).__name__}: {error}. Run the command again with --debug and report it.",
        json=json,
        kind="InternalError",
    )
    return EXIT_BUG

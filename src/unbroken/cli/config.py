"""`unbroken config`: what a training that is started here would be told, and by whom."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.engine.configuration.effective import effective
from unbroken.engine.configuration.variables import CONFIG
from unbroken.report.settings import settings_data, settings_table


def config(
    print_: Annotated[
        bool, typer.Option("--print", help="Show the effective settings; the default.")
    ] = False,
    file: Annotated[
        str, typer.Option("--file", help="This file. Default: UNBROKEN_CONFIG, else unbroken.yaml here.")
    ] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the file, for editors.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Show the effective settings, and where each comes from: a default, a line of the file, or a variable.

    What a script gives in code is not known here; it wins over the file, and a variable wins over it. A file that
    cannot be used is an error with the line.
    """
    if schema:
        from unbroken.engine.configuration.model import schema as made

        show(data=made(), json=True)
        return EXIT_OK
    settings = effective({**os.environ, CONFIG: file} if file else os.environ)
    said = f"settings from {settings.config_file}" if settings.config_file else "no configuration file"
    show(settings_table(settings), "", said, data=settings_data(settings), json=json)
    return EXIT_OK

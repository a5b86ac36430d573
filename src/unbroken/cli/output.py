"""Where a command's words go: tables or one JSON object on standard output, errors on standard error."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.text import Text

from unbroken.report.table import Table


def show(*parts: Table | str, data: object, json: bool) -> None:
    """Print `parts` for a person, or `data` as one JSON object for a machine."""
    if json:
        sys.stdout.write(msgspec.json.encode(data, enc_hook=str).decode() + "\n")
        return
    console = Console()
    for part in parts:
        if isinstance(part, Table):
            part.print_to(console)
        elif console.is_terminal:
            console.print(Text(part))
        else:
            console.file.write(part + "\n")


def write_error(message: str, *, json: bool = False, kind: str = "") -> None:
    """Print an error; for a machine also as the one JSON object that it waits for."""
    Console(stderr=True).print(Text.assemble(("unbroken: ", "bold red"), message), soft_wrap=True)
    if json:
        answer = {"error": {"kind": kind, "message": message}}
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")

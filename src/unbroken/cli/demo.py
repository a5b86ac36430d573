"""`unbroken demo`: a PPO and a DQN, killed and resumed, beside the framework's own save and load."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from unbroken.cli.guard import DebugOption
from unbroken.errors import ConfigError

FOLDER = Path("demo")


def demo(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Options of the demo itself, after `--`.")
    ] = None,
    debug: DebugOption = False,
) -> int:
    """Run the demo of a source checkout: bit-exact resume, with a picture. Exit status 1: not bit-exact."""
    if not (FOLDER / "__main__.py").is_file():
        raise ConfigError(
            "The demo belongs to the source tree and is not here.",
            hint="Clone the repository, change into it and run: make demo",
        )
    sys.argv = [str(FOLDER), *(arguments or [])]
    sys.path.insert(0, str(Path.cwd()))  # as `python -m demo` does
    try:
        runpy.run_module(str(FOLDER), run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0

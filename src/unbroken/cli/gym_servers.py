"""`unbroken gym up`, `wrap` and `trim`: the servers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show as print_out

CONFIG = "YAML files, as NeMo Gym's config_paths: looked for here, then where NeMo Gym is installed."


@dataclass(frozen=True, slots=True)
class Trimmed:
    """An output file that was made readable. `bytes` is what was cut off."""

    path: str
    bytes: int


def up(
    config: Annotated[list[str], typer.Argument(help=CONFIG)],
    directory: Annotated[
        Path, typer.Option("--dir", help="Where logs are kept, and found by the next start: a local disk.")
    ],
    python: Annotated[str, typer.Option(help="The Python that has NeMo Gym; default: this one.")] = "",
    external: Annotated[
        list[str] | None,
        typer.Option(help="A server that somebody else starts, at the address that the configuration gives."),
    ] = None,
    head: Annotated[
        bool, typer.Option("--head", help="Start a head server as well, for ng_collect_rollouts.")
    ] = False,
    preload: Annotated[
        bool, typer.Option("--preload", help="Fork servers from one process: they restart faster.")
    ] = False,
    restarts: Annotated[
        int, typer.Option(help="How many deaths of a server within five minutes are answered by a new start.")
    ] = 5,
    debug: DebugOption = False,
) -> int:
    """Start the servers of a configuration and keep them running, until Ctrl-C. Neither Ray nor uv is needed.

    A server that dies is started again at the same address, and restores itself from its log.
    """
    from unbroken.adapters.nemo_gym.launch.up import up as run

    return run(
        config,
        directory=directory,
        python=python or None,
        external=external or (),
        head=head,
        preload=preload,
        restarts=restarts,
    )


def wrap(
    config: Annotated[list[str], typer.Argument(help=CONFIG)],
    out: Annotated[Path, typer.Option(help="Where the directories are written; start ng_run there.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Write directories of wrapped servers, so that ng_run starts them without an edit by hand."""
    from unbroken.adapters.nemo_gym.launch.project import wrap as write

    written = write(config, out=out)
    print_out(
        *(f"{one.directory}: {one.class_name} of {one.module}" for one in written),
        data={"written": written},
        json=json,
    )
    return EXIT_OK


def trim(
    path: Annotated[Path, typer.Argument(help="An output file of ng_collect_rollouts.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Cut a torn last line off an output file, which +resume_from_cache=true could not read. It is kept beside it."""
    from unbroken.adapters.nemo_gym.launch.rollouts_file import trim_torn_line

    count = trim_torn_line(path)
    words = f"{count} bytes of a torn last line moved to {path}.torn" if count else "no torn line"
    print_out(f"{path}: {words}", data=Trimmed(str(path), count), json=json)
    return EXIT_OK

"""`unbroken ui`: pages to browse the runs under a root, live."""

from __future__ import annotations

from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption
from unbroken.errors import ConfigError, installing
from unbroken.inspection.target import default_root

LOCAL = "127.0.0.1"
PACKAGES = ("plotly", "jinja2", "fastapi", "uvicorn")
NEEDED = frozenset({"fastapi", "starlette", "uvicorn", "jinja2", "markupsafe", "plotly", "anyio", "pydantic"})


def ui(
    root: Annotated[
        str,
        typer.Argument(help="A root with runs, or one run. Default: UNBROKEN_ROOT, unbroken.yaml, or here."),
    ] = "",
    host: Annotated[
        str,
        typer.Option("--host", help="The address to listen at. Anything but this machine needs the token."),
    ] = LOCAL,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="The port; 0: any. Default: 8484, or any if it is taken."
        ),
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let the pages delete checkpoints (prune).")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="A further name that the server may be asked by, behind a proxy for one."
        ),
    ] = None,
    debug: DebugOption = False,
) -> int:
    """Browse runs in a browser: how each stands, its curves and interruptions, its checkpoints and how they differ.

    The printed address has a token in it. On this machine, your own processes need none. Nothing is changed, unless
    --allow-write says so.
    """
    try:
        from unbroken.ui.app.serving import serve
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        raise ConfigError(
            f"The pages need {missing}, which is not installed.", hint=installing(*PACKAGES)
        ) from error
    serve(
        root or default_root(),
        host=host,
        port=port,
        allow_write=allow_write,
        allow_hosts=frozenset(allow_host or ()),
        tell=lambda line: print(line, flush=True),
    )
    return EXIT_OK
